/* A sorted file as RocksDB's own writer makes it, without a call and a Python object for each row.
 *
 *     data blocks | filter | index | properties | metaindex | footer        block-based table, format version 5
 *
 *     block     rows: shared, own and value length, the rest of the key, value; every 16th key is whole (a restart)
 *     stored    block, its compression, checksum; compressed (LZ4) where that saves an eighth
 *     filter    10 bits a key, 6 of them in one line of 64 bytes, placed by the hash that RocksDB froze as XXPH3
 *     index     for each data block a key at or above its last and below the next block's first, and its place
 *
 * Tests compare these files with those of RocksDB's own writer, read them back through RocksDB, look up keys of every
 * length, and damage them. The properties are those that an ingest asks for.
 *
 * Rules of this file: no Python object, so it runs without the interpreter's lock; an error is -1 with errno. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "native.h"

#define FLUSH_BYTES ((size_t)1 << 20)
#define RESTART_ROWS 16
#define BITS_PER_KEY 10
#define PROBES 6
#define LZ4 4
#define XXH64_CHECKSUM 3
#define FORMAT_VERSION 5
#define MAGIC 0x88e241b785f4cff7u
#define TRAILER 5
#define DIGEST_BYTES ((size_t)256 << 10)
#define SPOTS_BITS 12
#define HASHES 16 /* keys whose lines of the filter are on their way into the cache */

typedef struct {
    unsigned char *bytes;
    size_t size, room;
} Buffer;

typedef struct {
    uint64_t at, size;
} Handle;

struct Table {
    int fd;
    uint32_t block_bytes;
    Buffer out; /* not written yet */
    uint64_t flushed;
    Buffer block, restarts, index, index_restarts;
    uint32_t since_restart, unshrunk;
    unsigned char *filter;
    uint64_t filter_bytes, hashes[HASHES];
    Summary made;
    uint64_t blocks, key_bytes, value_bytes;
    uint32_t spots[1 << SPOTS_BITS];
};

/* -- numbers ------------------------------------------------------------------------------------------------------- */

static uint32_t load32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static int reserve(Buffer *buffer, size_t more)
{
    size_t wanted = buffer->size + more;
    if (wanted <= buffer->room)
        return 0;
    size_t room = wanted + wanted / 2 + 64;
    unsigned char *fresh = realloc(buffer->bytes, room);
    if (fresh == NULL)
        return -1; /* realloc has set ENOMEM */
    buffer->bytes = fresh;
    buffer->room = room;
    return 0;
}

/* The caller has reserved the room of these. */
static void put(Buffer *buffer, const void *bytes, size_t size)
{
    if (size)
        memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

static void put_fixed(Buffer *buffer, uint64_t value, size_t size)
{
    put(buffer, &value, size);
}

static void put_varint(Buffer *buffer, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        buffer->bytes[buffer->size++] = (unsigned char)(value | 128);
    buffer->bytes[buffer->size++] = (unsigned char)value;
}

static uint32_t varint_size(uint64_t value)
{
    uint32_t size = 1;
    for (; value >= 128; value >>= 7)
        size++;
    return size;
}

/* -- hashes -------------------------------------------------------------------------------------------------------- */

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u

static uint64_t turned(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static uint64_t lane(uint64_t sum, uint64_t word)
{
    return turned(sum + word * P2, 31) * P1;
}

/* XXH64 with seed 0: the checksum of blocks. */
uint64_t bytes_checksum(const unsigned char *at, size_t size)
{
    const unsigned char *end = at + size;
    uint64_t hash = P5;
    if (size >= 32) {
        uint64_t sums[4] = {P1 + P2, P2, 0, -(uint64_t)P1};
        for (; end - at >= 32; at += 32)
            for (int i = 0; i < 4; i++)
                sums[i] = lane(sums[i], load64(at + 8 * i));
        hash = turned(sums[0], 1) + turned(sums[1], 7) + turned(sums[2], 12) + turned(sums[3], 18);
        for (int i = 0; i < 4; i++)
            hash = (hash ^ lane(0, sums[i])) * P1 + P4;
    }
    hash += size;
    for (; end - at >= 8; at += 8)
        hash = turned(hash ^ lane(0, load64(at)), 27) * P1 + P4;
    if (end - at >= 4) {
        hash = turned(hash ^ (uint64_t)load32(at) * P1, 23) * P2 + P3;
        at += 4;
    }
    for (; at < end; at++)
        hash = turned(hash ^ *at * P5, 11) * P1;
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

static const unsigned char secret[136] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
};

static uint64_t folded(uint64_t one, uint64_t other)
{
    __uint128_t product = (__uint128_t)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * P3;
    return hash ^ hash >> 32;
}

static uint64_t mix(const unsigned char *key, size_t at)
{
    return folded(load64(key) ^ load64(secret + at), load64(key + 8) ^ load64(secret + at + 8));
}

/* XXPH3 (XXH3 of version 0.7.2) with seed 0: the hash of keys in filters, for keys of up to TABLE_KEY_MAX bytes. */
static uint64_t key_hash(const unsigned char *key, size_t size)
{
    if (size == 0)
        return folded(load64(secret), P2);
    if (size < 4) {
        uint32_t all = key[0] | (uint32_t)key[size >> 1] << 8 | (uint32_t)key[size - 1] << 16 | (uint32_t)size << 24;
        return avalanche((all ^ (uint64_t)load32(secret)) * P1);
    }
    if (size <= 8) {
        uint64_t all = (load32(key) | (uint64_t)load32(key + size - 4) << 32) ^ load64(secret);
        all = size + (all ^ all >> 51) * 0x9E3779B1u;
        return avalanche((all ^ all >> 47) * P2);
    }
    if (size <= 16) {
        uint64_t low = load64(key) ^ load64(secret), high = load64(key + size - 8) ^ load64(secret + 8);
        return avalanche(size + low + high + folded(low, high));
    }
    uint64_t sum = size * P1;
    if (size <= 128) {
        for (size_t i = 0; i < (size + 31) / 32; i++)
            sum += mix(key + 16 * i, 32 * i) + mix(key + size - 16 * (i + 1), 32 * i + 16);
        return avalanche(sum);
    }
    for (size_t i = 0; i < 8; i++)
        sum += mix(key + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (size_t i = 8; i < size / 16; i++)
        sum += mix(key + 16 * i, 16 * (i - 8) + 3);
    return avalanche(sum + mix(key + size - 16, sizeof secret - 17));
}

/* -- compression --------------------------------------------------------------------------------------------------- */

/* One sequence of LZ4: literals, then a match, or none at the end of a block. */
static size_t sequence(unsigned char *out, const unsigned char *literals, size_t count, size_t back, size_t length)
{
    size_t at = 1, rest = length - 4;
    out[0] = (unsigned char)((count < 15 ? count : 15) << 4);
    if (count >= 15) {
        size_t left = count - 15;
        for (; left >= 255; left -= 255)
            out[at++] = 255;
        out[at++] = (unsigned char)left;
    }
    memcpy(out + at, literals, count);
    at += count;
    if (back == 0)
        return at;
    out[at++] = (unsigned char)back;
    out[at++] = (unsigned char)(back >> 8);
    out[0] |= (unsigned char)(rest < 15 ? rest : 15);
    if (rest >= 15) {
        for (rest -= 15; rest >= 255; rest -= 255)
            out[at++] = 255;
        out[at++] = (unsigned char)rest;
    }
    return at;
}

/* Compress to at most `most` bytes, for which `out` has room; 0: it does not fit. */
static size_t compress(const unsigned char *in, size_t size, unsigned char *out, size_t most, uint32_t *spots)
{
    size_t made = 0, from = 0, at = 1;
    if (size < 64 || size > UINT32_MAX)
        return 0;
    size_t last = size - 12, end = size - 5; /* the format: no match begins in the last 12 bytes or ends in the last 5 */
    memset(spots, 0, sizeof(uint32_t) << SPOTS_BITS);
    for (;;) {
        size_t found;
        for (uint32_t tries = 64;; at += tries++ >> 6) { /* the longer nothing matches, the larger the steps */
            if (at > last)
                goto rest;
            uint32_t word = load32(in + at), spot = word * 2654435761u >> (32 - SPOTS_BITS);
            found = spots[spot];
            spots[spot] = (uint32_t)at;
            if (load32(in + found) == word && at - found <= UINT16_MAX)
                break;
        }
        while (at > from && found > 0 && in[at - 1] == in[found - 1])
            at--, found--;
        size_t length = alike(in + at, in + found, end - at), count = at - from;
        if (made + count + count / 255 + length / 255 + 8 > most)
            return 0;
        made += sequence(out + made, in + from, count, at - found, length);
        from = at += length;
    }
rest:
    if (made + (size - from) + (size - from) / 255 + 2 > most)
        return 0;
    return made + sequence(out + made, in + from, size - from, 0, 4);
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

int write_all(int fd, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written == 0)
            errno = EIO; /* some file systems say so in place of an error: asking again would never end */
        if (written == 0 || (written < 0 && errno != EINTR))
            return -1;
        bytes += written > 0 ? written : 0;
        size -= written > 0 ? (size_t)written : 0;
    }
    return 0;
}

static int flush(Table *table)
{
    if (write_all(table->fd, table->out.bytes, table->out.size) < 0)
        return -1;
    /* The ingest waits until the file is on the disk: let it go there meanwhile. A wish, so its errors are not ours. */
    sync_file_range(table->fd, (off64_t)table->flushed, (off64_t)table->out.size, SYNC_FILE_RANGE_WRITE);
    table->flushed += table->out.size;
    table->out.size = 0;
    return 0;
}

static int store(Table *table, const Buffer *block, int pack, Handle *handle)
{
    Buffer *out = &table->out;
    if (reserve(out, block->size + 5 + TRAILER) < 0)
        return -1;
    size_t start = out->size, made = 0;
    handle->at = table->flushed + start;
    /* Where four blocks one after the other did not shrink, only every fourth is tried, and of further ones every
     * sixteenth: trying each would take a third of the whole time. */
    if (pack && (table->unshrunk < 4 || table->blocks % (table->unshrunk < 16 ? 4 : 16) == 0)) {
        put_varint(out, block->size);
        size_t head = out->size - start;
        made = block->size - block->size / 8 > head ? block->size - block->size / 8 - head : 0;
        made = compress(block->bytes, block->size, out->bytes + out->size, made, table->spots);
        out->size += made;
        table->unshrunk = made ? 0 : table->unshrunk + 1;
    }
    if (made == 0) {
        out->size = start;
        put(out, block->bytes, block->size);
    }
    handle->size = out->size - start;
    put_fixed(out, made ? LZ4 : 0, 1);
    put_fixed(out, bytes_checksum(out->bytes + start, out->size - start), 4);
    return out->size >= FLUSH_BYTES ? flush(table) : 0;
}

static int put_restart(Buffer *restarts, size_t at)
{
    if (reserve(restarts, 8) < 0)
        return -1;
    put_fixed(restarts, at, 4);
    return 0;
}

static int end_block(Buffer *block, Buffer *restarts)
{
    uint64_t count = restarts->size / 4;
    if (block->size > UINT32_MAX || reserve(block, restarts->size + 4) < 0) {
        errno = block->size > UINT32_MAX ? EFBIG : ENOMEM;
        return -1;
    }
    put(block, restarts->bytes, restarts->size);
    put_fixed(block, count, 4);
    restarts->size = 0;
    return 0;
}

/* Store the data block, and its index entry under a key that is at or above its last and below `next`. */
static int end_data(Table *table, const unsigned char *next, uint32_t next_len)
{
    Handle handle;
    if (end_block(&table->block, &table->restarts) < 0 || store(table, &table->block, 1, &handle) < 0)
        return -1;
    table->block.size = table->since_restart = 0;
    table->blocks++;
    Buffer *index = &table->index;
    const unsigned char *last = table->made.last;
    uint32_t size = table->made.last_len, same = alike(last, next, size < next_len ? size : next_len);
    int cut = same < size && same < next_len && (same + 1 < next_len || last[same] + 1 < next[same]);
    if (cut)
        size = same + 1;
    if (put_restart(&table->index_restarts, index->size) < 0 || reserve(index, (size_t)size + 32) < 0)
        return -1;
    put_varint(index, 0);
    put_varint(index, size);
    put(index, last, size);
    if (cut)
        index->bytes[index->size - 1]++; /* below 255, since `next` has a larger byte there */
    put_varint(index, handle.at);
    put_varint(index, handle.size);
    return 0;
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

Table *table_new(int fd, uint64_t rows, uint32_t block_bytes)
{
    Table *table = calloc(1, sizeof(Table));
    if (table == NULL)
        return NULL;
    table->fd = fd;
    table->block_bytes = block_bytes;
    table->filter_bytes = ((rows * BITS_PER_KEY + 7) / 8 + 63) & ~(uint64_t)63;
    table->filter = table->filter_bytes < 0xffffffc0u ? calloc(1, table->filter_bytes + 5) : NULL;
    if (table->filter == NULL || reserve(&table->out, FLUSH_BYTES + 2 * (size_t)block_bytes) < 0 ||
        reserve(&table->block, 2 * (size_t)block_bytes) < 0) {
        table_free(table);
        errno = ENOMEM;
        return NULL;
    }
    return table;
}

void table_free(Table *table)
{
    free(table->out.bytes);
    free(table->block.bytes);
    free(table->restarts.bytes);
    free(table->index.bytes);
    free(table->index_restarts.bytes);
    free(table->filter);
    free(table);
}

static unsigned char *line_of(const Table *table, uint64_t hash)
{
    return table->filter + (((hash & UINT32_MAX) * (table->filter_bytes >> 6) >> 32) << 6);
}

static void put_filter(Table *table, uint64_t hash)
{
    unsigned char *at = line_of(table, hash);
    uint32_t probe = (uint32_t)(hash >> 32);
    for (int i = 0; i < PROBES; i++, probe *= 0x9e3779b9u)
        at[probe >> 26] |= (unsigned char)(1 << (probe >> 23 & 7));
}

/* Whether the block ends before this row: by the rule of RocksDB's writer, near its size and not far above it. */
static int is_full(const Table *table, uint32_t key_len, uint32_t value_len)
{
    uint64_t now = table->block.size + table->restarts.size + 4;
    uint64_t then = now + key_len + value_len + 4 + varint_size(key_len) + varint_size(value_len);
    then += table->since_restart >= RESTART_ROWS ? 4 : 0;
    return now >= table->block_bytes ||
           (then > table->block_bytes && now > ((uint64_t)table->block_bytes * 90 + 99) / 100);
}

int table_add(Table *table, const Cell *row)
{
    Summary *made = &table->made;
    const unsigned char *key = row->key;
    uint32_t key_len = row->key_len, shared = 0, whole = key_len + 8;
    uint32_t length = row->value_len < 0 ? 0 : (uint32_t)row->value_len;
    if (key_len > TABLE_KEY_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (made->rows) {
        shared = alike(made->last, key, made->last_len < key_len ? made->last_len : key_len);
        if (shared == key_len || (shared < made->last_len && key[shared] < made->last[shared])) {
            errno = EINVAL; /* RocksDB would lose rows that are out of order */
            return -1;
        }
        if (is_full(table, whole, length) && end_data(table, key, key_len) < 0)
            return -1;
    }
    Buffer *block = &table->block;
    if (table->since_restart == 0 || table->since_restart >= RESTART_ROWS) {
        if (put_restart(&table->restarts, block->size) < 0)
            return -1;
        table->since_restart = shared = 0;
    }
    table->since_restart++;
    if (reserve(block, (size_t)whole + length + 15) < 0)
        return -1;
    put_varint(block, shared);
    put_varint(block, whole - shared);
    put_varint(block, length);
    put(block, key + shared, key_len - shared);
    put_fixed(block, row->value_len >= 0, 8); /* sequence number 0; 1: a value, 0: a delete */
    put(block, row->value, length);
    uint64_t *waiting = table->hashes + made->rows % HASHES, hash = key_hash(key, key_len);
    if (made->rows >= HASHES)
        put_filter(table, *waiting);
    *waiting = hash;
    __builtin_prefetch(line_of(table, hash), 1);
    if (made->rows == made->deletes && row->value_len >= 0)
        memcpy(made->live, key, made->live_len = key_len);
    if (made->rows++ == 0)
        memcpy(made->first, key, made->first_len = key_len);
    memcpy(made->last + shared, key + shared, key_len - shared);
    made->last_len = key_len;
    made->deletes += row->value_len < 0;
    table->key_bytes += whole;
    table->value_bytes += length;
    return 0;
}

/* Halve the filter as often as its rows allow: it was made for as many as there may have been. The line of a key is
 * hash * lines / 2**32, so that two neighbours become one. */
static void shrink_filter(Table *table)
{
    uint64_t lines = table->filter_bytes / 64;
    for (; lines % 2 == 0 && lines / 2 * 512 >= table->made.rows * BITS_PER_KEY; lines /= 2)
        for (uint64_t i = 0; i < lines / 2; i++)
            for (uint64_t j = 0; j < 64; j++)
                table->filter[64 * i + j] = table->filter[128 * i + j] | table->filter[128 * i + 64 + j];
    table->filter_bytes = lines * 64;
}

uint64_t table_size(const Table *table)
{
    return table->flushed + table->out.size;
}

/* -- the end ------------------------------------------------------------------------------------------------------- */

static void pair(Buffer *block, const char *name, const void *value, size_t size)
{
    put_varint(block, 0);
    put_varint(block, strlen(name));
    put_varint(block, size);
    put(block, name, strlen(name));
    put(block, value, size);
}

static void number(Buffer *block, const char *name, uint64_t value)
{
    unsigned char bytes[10];
    Buffer own = {bytes, 0, sizeof bytes};
    put_varint(&own, value);
    pair(block, name, bytes, own.size);
}

static void text(Buffer *block, const char *name, const char *value)
{
    pair(block, name, value, strlen(value));
}

/* An identity that no other file has, in RocksDB's form: cached blocks are found by it. */
static int identity(char *into)
{
    uint64_t drawn[2];
    if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
        return -1;
    drawn[0] >>= 2; /* the last 12 digits stand for 62 bits */
    for (int i = 19; i >= 0; i--) {
        uint64_t *from = drawn + (i < 8);
        into[i] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[*from % 36];
        *from /= 36;
    }
    into[20] = 0;
    return 0;
}

/* Names in ascending order. */
static void properties(Buffer *block, const Table *table, const char *own, uint64_t data_size, uint64_t index_size)
{
    uint32_t version = 2, none = 0;
    uint64_t sequence_number = 0;
    pair(block, "rocksdb.block.based.table.index.type", &none, 4);
    text(block, "rocksdb.block.based.table.prefix.filtering", "0");
    text(block, "rocksdb.block.based.table.whole.key.filtering", "1");
    number(block, "rocksdb.column.family.id", INT32_MAX); /* none yet */
    text(block, "rocksdb.comparator", "leveldb.BytewiseComparator");
    text(block, "rocksdb.compression", "LZ4");
    text(block, "rocksdb.creating.db.identity", "SST Writer");
    text(block, "rocksdb.creating.session.identity", own);
    number(block, "rocksdb.creation.time", 0);
    number(block, "rocksdb.data.size", data_size);
    number(block, "rocksdb.deleted.keys", table->made.deletes);
    pair(block, "rocksdb.external_sst_file.global_seqno", &sequence_number, 8);
    pair(block, "rocksdb.external_sst_file.version", &version, 4);
    text(block, "rocksdb.filter.policy", "bloomfilter");
    number(block, "rocksdb.filter.size", table->filter_bytes + 5);
    number(block, "rocksdb.fixed.key.length", 0);
    number(block, "rocksdb.format.version", FORMAT_VERSION);
    number(block, "rocksdb.index.key.is.user.key", 1);
    number(block, "rocksdb.index.size", index_size);
    number(block, "rocksdb.index.value.is.delta.encoded", 1);
    number(block, "rocksdb.key.largest.seqno", 0);
    number(block, "rocksdb.merge.operands", 0);
    text(block, "rocksdb.merge.operator", "nullptr");
    number(block, "rocksdb.num.data.blocks", table->blocks);
    number(block, "rocksdb.num.entries", table->made.rows);
    number(block, "rocksdb.num.filter_entries", table->made.rows);
    number(block, "rocksdb.num.range-deletions", 0);
    number(block, "rocksdb.oldest.key.time", 0);
    number(block, "rocksdb.original.file.number", 1);
    text(block, "rocksdb.prefix.extractor.name", "nullptr");
    text(block, "rocksdb.property.collectors", "[]");
    number(block, "rocksdb.raw.key.size", table->key_bytes);
    number(block, "rocksdb.raw.value.size", table->value_bytes);
    number(block, "rocksdb.tail.start.offset", data_size);
}

static size_t encoded(unsigned char *into, Handle handle)
{
    Buffer own = {into, 0, 20};
    put_varint(&own, handle.at);
    put_varint(&own, handle.size);
    return own.size;
}

int table_finish(Table *table, Summary *made)
{
    char own[21];
    unsigned char place[20];
    Buffer *block = &table->block;
    Handle filter, index, props, meta;
    if (identity(own) < 0 || end_data(table, NULL, 0) < 0)
        return -1;
    uint64_t data_size = table_size(table);
    for (uint64_t i = 0; i < HASHES && i < table->made.rows; i++)
        put_filter(table, table->hashes[i]);
    shrink_filter(table);
    memcpy(table->filter + table->filter_bytes, (unsigned char[]){0xff, 0, PROBES, 0, 0}, 5);
    Buffer all = {table->filter, table->filter_bytes + 5, 0};
    if (store(table, &all, 0, &filter) < 0 || end_block(&table->index, &table->index_restarts) < 0 ||
        store(table, &table->index, 1, &index) < 0 || reserve(block, 4096) < 0)
        return -1;
    properties(block, table, own, data_size, table->index.size + TRAILER);
    if (put_restart(&table->restarts, 0) < 0 || end_block(block, &table->restarts) < 0 ||
        store(table, block, 0, &props) < 0)
        return -1;
    block->size = 0;
    put_restart(&table->restarts, block->size); /* room is left from the data blocks */
    pair(block, "fullfilter.rocksdb.BuiltinBloomFilter", place, encoded(place, filter));
    put_restart(&table->restarts, block->size);
    pair(block, "rocksdb.properties", place, encoded(place, props));
    if (end_block(block, &table->restarts) < 0 || store(table, block, 0, &meta) < 0 || reserve(&table->out, 53) < 0)
        return -1;
    Buffer *out = &table->out;
    size_t start = out->size;
    memset(out->bytes + start, 0, 53);
    out->bytes[start] = XXH64_CHECKSUM;
    size_t used = encoded(out->bytes + start + 1, meta);
    encoded(out->bytes + start + 1 + used, index);
    out->size += 41;
    put_fixed(out, FORMAT_VERSION, 4);
    put_fixed(out, MAGIC, 8);
    *made = table->made;
    return flush(table);
}

/* A digest of a file's bytes against accidents: the checksums of its pieces, in their order. */
int file_digest(const char *path, uint64_t *digest)
{
    unsigned char *piece = malloc(DIGEST_BYTES);
    int fd = piece == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC), failed = fd < 0;
    size_t size = DIGEST_BYTES;
    *digest = 0;
    while (!failed && size == DIGEST_BYTES) {
        ssize_t found = 1;
        for (size = 0; size < DIGEST_BYTES && found != 0; size += found > 0 ? (size_t)found : 0) {
            found = read(fd, piece + size, DIGEST_BYTES - size);
            if (found < 0 && errno != EINTR) {
                failed = 1;
                break;
            }
        }
        *digest = (*digest ^ bytes_checksum(piece, size)) * P1;
    }
    int code = errno;
    if (fd >= 0)
        close(fd);
    free(piece);
    errno = code;
    return -failed;
}
