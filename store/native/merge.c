/* Rows of spills and of a fold in key order, of each key the newest, as files of RocksDB or as Python objects.
 *
 *     spills, oldest first, then the fold's own rows ── merge ──> files, one for each range of keys
 *
 * Ranges are found by the first keys of frames and by those of some rows in memory. One thread merges a range.
 *
 * Rules of this file: an error is -1 with errno where no Python object may be touched. What threads share lies on the
 * heap: an interpreter that ends lets a daemon thread end in `call_look`, and its helpers go on. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "native.h"

#define SAMPLED_ROWS 1024
#define INPUTS_MAX 64
#define FILES_MAX 4096
#define THREADS_MAX 16
#define FILTER_LINES 64 /* a filter whose lines are a multiple of this can be halved six times */

/* -- cursors ------------------------------------------------------------------------------------------------------- */

/* The rows of one segment in one spill, or in the fold. */
typedef struct {
    const Spill *spill; /* NULL: the fold's */
    const Stretch *stretch;
    PyObject *fold;
    Group group;
} Input;

typedef struct {
    const Input *input;
    uint32_t age; /* a larger one is newer */
    uint32_t common; /* bytes that all keys begin with */
    int done;
    uint64_t prefix; /* eight bytes behind these */
    Cell row;
    /* of a spill */
    uint32_t frame;
    unsigned char *bytes;
    size_t room, at, size;
    /* of the fold */
    uint32_t next;
    Cell cells[CELLS_MAX];
    uint32_t cell, filled;
} Cursor;

static int load_frame(Cursor *self)
{
    const Frame *frame = self->input->spill->frames + self->frame;
    if (frame->size > self->room) {
        unsigned char *fresh = realloc(self->bytes, frame->size);
        if (fresh == NULL)
            return -1;
        self->bytes = fresh;
        self->room = frame->size;
    }
    int fd = self->input->spill->fd;
    for (size_t done = 0; done < frame->size;) {
        ssize_t found = pread(fd, self->bytes + done, frame->size - done, (off_t)(frame->at + done));
        if (found == 0)
            errno = EIO; /* the file has lost its end */
        if (found == 0 || (found < 0 && errno != EINTR))
            return -1;
        done += found > 0 ? (size_t)found : 0;
    }
    if (bytes_checksum(self->bytes, frame->size) != frame->checksum) {
        errno = EIO;
        return -1;
    }
    self->at = 0;
    self->size = frame->size;
    return 0;
}

static int next_row(Cursor *self)
{
    const Input *input = self->input;
    if (input->spill != NULL) {
        if (self->at == self->size) {
            if (++self->frame >= input->stretch->to) {
                self->done = 1;
                return 0;
            }
            if (load_frame(self) < 0)
                return -1;
        }
        const unsigned char *at = self->bytes + self->at;
        memcpy(&self->row.key_len, at, 4);
        memcpy(&self->row.value_len, at + 4, 4);
        self->row.key = at + FRAME_HEAD;
        self->row.value = (const char *)at + FRAME_HEAD + self->row.key_len;
        self->at += FRAME_HEAD + self->row.key_len + (self->row.value_len < 0 ? 0 : (size_t)self->row.value_len);
    } else {
        if (self->cell == self->filled) {
            if (self->next == input->group.to) {
                self->done = 1;
                return 0;
            }
            uint32_t end = fold_cells(input->fold, self->next, input->group.to, self->cells);
            self->filled = end - self->next;
            self->next = end;
            self->cell = 0;
        }
        self->row = self->cells[self->cell++];
    }
    self->prefix = prefix_of(self->row.key + self->common, self->row.key_len - self->common);
    return 0;
}

/* The last frame of a spill that begins at or below a key, else its first one. */
static uint32_t frame_at(const Input *input, const Cell *key)
{
    const Frame *frames = input->spill->frames;
    uint32_t low = input->stretch->from, high = input->stretch->to;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_keys(frames[middle].key, frames[middle].key_len, key->key, key->key_len) <= 0)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The first row of the fold at or above a key, else the end. */
static uint32_t place_at(const Input *input, const Cell *key)
{
    uint32_t low = input->group.from, high = input->group.to;
    while (low < high) {
        Cell cell;
        uint32_t middle = low + (high - low) / 2;
        fold_cells(input->fold, middle, middle + 1, &cell);
        if (compare_cells(&cell, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Place a cursor at the first row at or above a key; NULL: at the first row. */
static int seek(Cursor *self, const Cell *key)
{
    const Input *input = self->input;
    if (input->spill == NULL) {
        self->next = key != NULL ? place_at(input, key) : input->group.from;
        return next_row(self);
    }
    self->frame = key != NULL ? frame_at(input, key) : input->stretch->from;
    if (load_frame(self) < 0 || next_row(self) < 0)
        return -1;
    while (key != NULL && !self->done && compare_cells(&self->row, key) < 0)
        if (next_row(self) < 0)
            return -1;
    return 0;
}

/* -- merging ------------------------------------------------------------------------------------------------------- */

/* Rows of all inputs in key order, of each key the newest. */
typedef struct {
    Cursor *cursors;
    uint32_t count;
    Cursor *heap[INPUTS_MAX];
    int begun;
} Merge;

/* Whether one comes before the other: a smaller key, or the same and newer. */
static int before(const Cursor *one, const Cursor *other)
{
    if (one->done || other->done)
        return !one->done;
    if (one->prefix != other->prefix)
        return one->prefix < other->prefix;
    int found = compare_cells(&one->row, &other->row);
    return found ? found < 0 : one->age > other->age;
}

/* The first of the two below a place; 0: there is none. */
static uint32_t child_of(const Merge *self, uint32_t at)
{
    uint32_t child = 2 * at + 1;
    if (child >= self->count)
        return 0;
    return child + 1 < self->count && before(self->heap[child + 1], self->heap[child]) ? child + 1 : child;
}

static void sift(Merge *self, uint32_t at)
{
    Cursor *moved = self->heap[at];
    for (uint32_t child; (child = child_of(self, at)) != 0 && before(self->heap[child], moved); at = child)
        self->heap[at] = self->heap[child];
    self->heap[at] = moved;
}

static int advance(Merge *self, uint32_t at)
{
    int failed = next_row(self->heap[at]);
    sift(self, at);
    return failed;
}

static void merge_free(Merge *self)
{
    for (uint32_t i = 0; self->cursors != NULL && i < self->count; i++)
        free(self->cursors[i].bytes);
    free(self->cursors);
}

static void ends_of(const Input *input, Cell *first, Cell *last)
{
    if (input->spill == NULL) {
        fold_cells(input->fold, input->group.from, input->group.from + 1, first);
        fold_cells(input->fold, input->group.to - 1, input->group.to, last);
        return;
    }
    const Frame *frame = input->spill->frames + input->stretch->from;
    *first = (Cell){.key = frame->key, .key_len = frame->key_len};
    *last = (Cell){.key = input->stretch->last, .key_len = input->stretch->last_len};
}

/* Bytes that all keys begin with: those of the least and the greatest. */
static uint32_t common_of(const Input *inputs, uint32_t count)
{
    Cell first, last, least, greatest;
    ends_of(inputs, &least, &greatest);
    for (uint32_t i = 1; i < count; i++) {
        ends_of(inputs + i, &first, &last);
        if (compare_cells(&first, &least) < 0)
            least = first;
        if (compare_cells(&last, &greatest) > 0)
            greatest = last;
    }
    return alike(least.key, greatest.key, least.key_len < greatest.key_len ? least.key_len : greatest.key_len);
}

/* Begin at the first key at or above `key`, NULL: at the first of all. Free it after an error, too. */
static int merge_begin(Merge *self, const Input *inputs, uint32_t count, const Cell *key)
{
    uint32_t common = common_of(inputs, count);
    *self = (Merge){.cursors = calloc(count, sizeof(Cursor)), .count = count};
    if (self->cursors == NULL)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        self->cursors[i].input = inputs + i;
        self->cursors[i].age = i;
        self->cursors[i].common = common;
        self->heap[i] = self->cursors + i;
    }
    for (uint32_t i = 0; i < count; i++)
        if (seek(self->cursors + i, key) < 0)
            return -1;
    for (uint32_t i = count / 2; i-- > 0;)
        sift(self, i);
    return 0;
}

/* The next row, in memory until the next call. NULL: there is none, or an error if `failed`. */
static const Cell *merge_row(Merge *self, int *failed)
{
    const Cursor *top, *next;
    *failed = self->begun ? advance(self, 0) : 0;
    self->begun = 1;
    for (uint32_t child; !*failed && (child = child_of(self, 0)) != 0; *failed = advance(self, child)) {
        top = self->heap[0];
        next = self->heap[child];
        if (next->done || next->prefix != top->prefix || compare_cells(&next->row, &top->row) != 0)
            break; /* else it is the same key, and older */
    }
    return *failed || self->heap[0]->done ? NULL : &self->heap[0]->row;
}

/* -- files --------------------------------------------------------------------------------------------------------- */

/* One range of keys, and its file. */
typedef struct {
    const char *path;
    const Cell *from, *to; /* NULL: open */
    uint64_t dropped;       /* deletes that were left out */
    Summary made;           /* without rows there is no file */
} Range;

typedef struct {
    Input inputs[INPUTS_MAX];
    uint32_t inputs_count;
    Range *ranges;
    uint32_t count, next; /* next: by all threads */
    uint32_t block_bytes;
    int deletes; /* whether they are written */
    PyObject *look;
    int stop, failed, code; /* by all threads; failed is -1 with a code, or 1: `look` raised */
    const char *where;
} Work;

/* Rows that a range may have, at most. */
static uint64_t most_of(const Work *work, const Range *range)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < work->inputs_count; i++) {
        const Input *input = work->inputs + i;
        if (input->spill == NULL) {
            most += range->to != NULL ? place_at(input, range->to) : input->group.to;
            most -= range->from != NULL ? place_at(input, range->from) : input->group.from;
            continue;
        }
        const Frame *frames = input->spill->frames;
        for (uint32_t j = range->from != NULL ? frame_at(input, range->from) : input->stretch->from;
             j < input->stretch->to && (range->to == NULL || compare_keys(frames[j].key, frames[j].key_len,
                                                                          range->to->key, range->to->key_len) < 0);
             j++)
            most += frames[j].rows;
    }
    return most;
}

static int open_table(const Work *work, const Range *range, Table **table, int *fd)
{
    uint64_t rows = most_of(work, range);
    if (work->inputs_count > 1 || !work->deletes) {
        /* Rows that are left out are not known yet: the filter is made for all, and halved at the end. */
        uint64_t lines = (rows * 10 + 511) / 512;
        rows = (lines + FILTER_LINES - 1) / FILTER_LINES * FILTER_LINES * 512 / 10;
    }
    *fd = open(range->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    *table = *fd < 0 ? NULL : table_new(*fd, rows, work->block_bytes);
    return *table == NULL ? -1 : 0;
}

static int fill_range(Work *work, Range *range, Merge *merge, Table **table, int *fd, int is_caller)
{
    uint64_t looked = 0;
    int failed = 0;
    const Cell *row;
    while ((row = merge_row(merge, &failed)) != NULL) {
        if (range->to != NULL && compare_cells(row, range->to) >= 0)
            break;
        if (row->value_len < 0 && !work->deletes) {
            range->dropped++;
            continue;
        }
        if ((*table == NULL && open_table(work, range, table, fd) < 0) || table_add(*table, row) < 0)
            return -1;
        if (table_size(*table) - looked < LOOK_BYTES)
            continue;
        looked = table_size(*table);
        if (is_caller && call_look(work->look))
            return 1;
        if (__atomic_load_n(&work->stop, __ATOMIC_RELAXED)) {
            errno = ECANCELED;
            return -1;
        }
    }
    return failed || *table == NULL ? failed : table_finish(*table, &range->made);
}

static int write_range(Work *work, Range *range, int is_caller)
{
    Merge merge;
    Table *table = NULL;
    int fd = -1, failed = merge_begin(&merge, work->inputs, work->inputs_count, range->from);
    if (!failed)
        failed = fill_range(work, range, &merge, &table, &fd, is_caller);
    int code = errno;
    merge_free(&merge);
    if (table != NULL)
        table_free(table);
    if (fd >= 0 && close(fd) < 0 && !failed) {
        code = errno;
        failed = -1;
    }
    errno = code;
    return failed;
}

static void work_on(Work *work, int is_caller)
{
    for (;;) {
        uint32_t at = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (at >= work->count || __atomic_load_n(&work->stop, __ATOMIC_RELAXED))
            return;
        int failed = write_range(work, work->ranges + at, is_caller), code = errno;
        if (!failed)
            continue;
        /* The first error counts: the others end because of it. */
        if (!__atomic_exchange_n(&work->stop, 1, __ATOMIC_ACQ_REL)) {
            work->failed = failed;
            work->code = code;
            work->where = work->ranges[at].path;
        }
        return;
    }
}

static void *help(void *given)
{
    work_on(given, 0);
    return NULL;
}

static void work_all(Work *work, unsigned int threads)
{
    pthread_t others[THREADS_MAX];
    unsigned int started = 0;
    /* A machine that allows no more threads leaves the work to this one. */
    while (started + 1 < threads && pthread_create(others + started, NULL, help, work) == 0)
        started++;
    work_on(work, 1);
    while (started > 0)
        pthread_join(others[--started], NULL);
}

/* -- Python -------------------------------------------------------------------------------------------------------- */

static int find_inputs(PyObject *spills, PyObject *fold, long long segment, Input inputs[INPUTS_MAX], uint32_t *count)
{
    Py_ssize_t size = PyTuple_Size(spills);
    *count = 0;
    if (size >= INPUTS_MAX) {
        PyErr_Format(PyExc_ValueError, "at most %d spills are merged", INPUTS_MAX - 1);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *one = PyTuple_GetItem(spills, i);
        if (!PyObject_TypeCheck(one, (PyTypeObject *)spill_type)) {
            PyErr_SetString(PyExc_TypeError, "a merge takes spills");
            return -1;
        }
        const Spill *spill = (Spill *)one;
        for (uint32_t j = 0; j < spill->stretches_count; j++)
            if (spill->stretches[j].segment == segment)
                inputs[(*count)++] = (Input){.spill = spill, .stretch = spill->stretches + j};
    }
    const Group *group;
    for (uint32_t i = 0; (group = fold_group(fold, i)) != NULL; i++)
        if (group->segment == segment)
            inputs[(*count)++] = (Input){.fold = fold, .group = *group};
    if (*count == 0)
        PyErr_SetString(PyExc_RuntimeError, "the segment has no rows");
    return *count == 0 ? -1 : 0;
}

static int order_cells(const void *one, const void *other)
{
    return compare_cells(one, other);
}

/* Divide the keys so that ranges have about as many bytes: by the first keys of frames, and by those of so many rows in
 * memory. Every input has at least one of them, so that no two ranges overlap. The result holds the keys. */
static Cell *divide(const Work *work)
{
    size_t all = 0, at = 0;
    for (uint32_t i = 0; i < work->inputs_count; i++) {
        const Input *input = work->inputs + i;
        all += input->spill != NULL ? input->stretch->to - input->stretch->from
                                    : (input->group.to - input->group.from + SAMPLED_ROWS - 1) / SAMPLED_ROWS;
    }
    Cell *keys = malloc(all * sizeof(Cell));
    if (keys == NULL)
        return NULL;
    for (uint32_t i = 0; i < work->inputs_count; i++) {
        const Input *input = work->inputs + i;
        for (uint32_t j = input->spill ? input->stretch->from : 0; input->spill && j < input->stretch->to; j++)
            keys[at++] = (Cell){.key = input->spill->frames[j].key, .key_len = input->spill->frames[j].key_len};
        for (uint32_t j = input->group.from; input->spill == NULL && j < input->group.to; j += SAMPLED_ROWS)
            fold_cells(input->fold, j, j + 1, keys + at++);
    }
    qsort(keys, all, sizeof(Cell), order_cells);
    for (uint32_t i = 1; i < work->count; i++) {
        const Cell *key = keys + all * i / work->count;
        work->ranges[i - 1].to = work->ranges[i].from = key;
    }
    return keys;
}

static PyObject *ranges_found(const Work *work)
{
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found != NULL && i < work->count; i++) {
        const Summary *made = &work->ranges[i].made;
        PyObject *file = made->rows == 0
                             ? Py_NewRef(Py_None)
                             : Py_BuildValue("(KKy#y#y#)", made->rows, made->deletes, made->first,
                                             (Py_ssize_t)made->first_len, made->last, (Py_ssize_t)made->last_len,
                                             made->rows > made->deletes ? (const char *)made->live : NULL,
                                             (Py_ssize_t)made->live_len);
        if (file == NULL || PyList_Append(found, file) < 0)
            Py_CLEAR(found);
        Py_XDECREF(file);
    }
    return found;
}

static PyObject *merged(Work *work, unsigned int threads)
{
    Cell *keys;
    Py_BEGIN_ALLOW_THREADS
    keys = divide(work);
    if (keys != NULL)
        work_all(work, threads);
    Py_END_ALLOW_THREADS
    free(keys);
    if (keys == NULL)
        return PyErr_NoMemory();
    if (work->failed)
        return raise_errno(work->failed < 0 ? work->code : 0, work->where);
    uint64_t dropped = 0;
    for (uint32_t i = 0; i < work->count; i++)
        dropped += work->ranges[i].dropped;
    PyObject *files = ranges_found(work);
    return files == NULL ? NULL : Py_BuildValue("(NK)", files, (unsigned long long)dropped);
}

PyObject *merge_files(PyObject *module, PyObject *args)
{
    PyObject *paths, *spills, *fold, *look, *found = NULL;
    unsigned int threads, block_bytes;
    int deletes;
    long long segment;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!IO!O!LpIO", &PyTuple_Type, &paths, &threads, &PyTuple_Type, &spills,
                          (PyTypeObject *)fold_type, &fold, &segment, &deletes, &block_bytes, &look))
        return NULL;
    Py_ssize_t count = PyTuple_Size(paths);
    if (count < 1 || count > FILES_MAX || threads < 1 || threads > THREADS_MAX) {
        PyErr_Format(PyExc_ValueError, "a merge makes 1 to %d files in 1 to %d threads", FILES_MAX, THREADS_MAX);
        return NULL;
    }
    if (fold_enter(fold) < 0)
        return NULL;
    Work *work = calloc(1, sizeof(Work));
    Range *ranges = calloc((size_t)count, sizeof(Range));
    if (work == NULL || ranges == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if ((ranges[i].path = path_of(PyTuple_GetItem(paths, i))) == NULL)
            goto out;
    work->ranges = ranges;
    work->count = (uint32_t)count;
    work->block_bytes = block_bytes;
    work->deletes = deletes;
    work->look = look;
    if (find_inputs(spills, fold, segment, work->inputs, &work->inputs_count) == 0)
        found = merged(work, threads < work->count ? threads : work->count);
out:
    free(work);
    free(ranges);
    fold_leave(fold);
    return found;
}

/* Rows above `after`, up to `most`, as two lists, and the last key; None after the last row. */
static PyObject *rows_above(Merge *merge, const Cell *after, unsigned int most)
{
    PyObject *keys = PyList_New(0), *values = PyList_New(0), *found = NULL;
    const Cell *row = NULL;
    int failed = keys == NULL || values == NULL, broken = 0;
    for (unsigned int made = 0; !failed && made < most && (row = merge_row(merge, &broken)) != NULL;) {
        if (after != NULL && compare_cells(row, after) == 0)
            continue;
        made++;
        PyObject *key = PyBytes_FromStringAndSize((const char *)row->key, row->key_len);
        PyObject *value =
            row->value_len < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(row->value, row->value_len);
        failed = key == NULL || value == NULL || PyList_Append(keys, key) < 0 || PyList_Append(values, value) < 0;
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (broken)
        raise_errno(errno, "rows that left memory");
    else if (!failed && row == NULL)
        found = Py_BuildValue("(OOO)", keys, values, Py_None);
    else if (!failed)
        found = Py_BuildValue("(OOy#)", keys, values, (const char *)row->key, (Py_ssize_t)row->key_len);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return found;
}

PyObject *merge_rows(PyObject *module, PyObject *args)
{
    PyObject *spills, *fold, *found = NULL;
    const char *after;
    Py_ssize_t after_len;
    unsigned int most;
    long long segment;
    Input inputs[INPUTS_MAX];
    uint32_t count;
    Merge merge;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!Lz#I", &PyTuple_Type, &spills, (PyTypeObject *)fold_type, &fold, &segment, &after,
                          &after_len, &most))
        return NULL;
    if (after_len > INT32_MAX || most < 1) {
        PyErr_SetString(PyExc_ValueError, "such a key is too long, or no rows are asked for");
        return NULL;
    }
    if (fold_enter(fold) < 0)
        return NULL;
    if (find_inputs(spills, fold, segment, inputs, &count) == 0) {
        Cell key = {.key = (const unsigned char *)after, .key_len = (uint32_t)after_len};
        const Cell *above = after != NULL ? &key : NULL;
        if (merge_begin(&merge, inputs, count, above) < 0)
            raise_errno(errno, "rows that left memory");
        else
            found = rows_above(&merge, above, most);
        merge_free(&merge);
    }
    fold_leave(fold);
    return found;
}

PyObject *digest_of(PyObject *module, PyObject *given)
{
    uint64_t digest;
    int failed;
    const char *path = path_of(given);
    (void)module;
    if (path == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = file_digest(path, &digest);
    Py_END_ALLOW_THREADS
    return failed ? raise_errno(errno, path) : PyLong_FromUnsignedLongLong(digest);
}
