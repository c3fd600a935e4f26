/* The part of librdkafka's stable ABI that this module uses, in our own words.
 *
 * librdkafka is never linked: its functions are found in the copy that the confluent_kafka package has loaded already
 * (see client.c). So no header of it is needed to build, and a process never has two copies.
 *
 * Rules of this file: declarations only, equal to librdkafka 2.x. */
#ifndef STANDFAST_RDKAFKA_H
#define STANDFAST_RDKAFKA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RD_OLDEST 0x02100000 /* 2.16, the oldest client that standfast takes */
#define RD_NEWEST 0x03000000 /* the ABI is promised within a major version */
#define RD_PRODUCER 0
#define RD_CONSUMER 1
#define RD_FATAL (-150)
#define RD_QUEUE_FULL (-184)
#define RD_PURGE_ALL 0x7 /* also records on their way, without waiting */
#define RD_COPY 0x2
#define RD_CONF_OK 0
#define RD_OFFSET_END (-1) /* as a time: the end of the partition */
#define RD_DESTROY_NO_CONSUMER_CLOSE 0x8

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_consumer_group_metadata_s rd_kafka_consumer_group_metadata_t;
struct rd_kafka_metadata;

/* The parts of a record for `producev`, each with the arguments behind it, up to RD_END. */
enum {
    RD_END,
    RD_TOPIC = 2,  /* rd_kafka_topic_t * */
    RD_PARTITION,  /* int32_t */
    RD_VALUE,      /* void *, size_t */
    RD_KEY,        /* void *, size_t */
    RD_OPAQUE,     /* void * */
    RD_FLAGS,      /* int */
    RD_TIMESTAMP,  /* int64_t */
    RD_HEADERS = 10 /* rd_kafka_headers_t *, taken if the record is */
};

typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *_private;
} rd_kafka_topic_partition_t;

typedef struct {
    int cnt;
    int size;
    rd_kafka_topic_partition_t *elems;
} rd_kafka_topic_partition_list_t;

/* X(result, name, arguments) for every function that is looked up; a library without one of them is refused. */
#define RD_FUNCTIONS(X)                                                                                                \
    X(int, version, (void))                                                                                            \
    X(const char *, version_str, (void))                                                                               \
    X(const char *, err2str, (int))                                                                                    \
    X(int, last_error, (void))                                                                                         \
    X(rd_kafka_conf_t *, conf_new, (void))                                                                             \
    X(void, conf_destroy, (rd_kafka_conf_t *))                                                                         \
    X(int, conf_set, (rd_kafka_conf_t *, const char *, const char *, char *, size_t))                                  \
    X(void, conf_set_opaque, (rd_kafka_conf_t *, void *))                                                              \
    X(void, conf_set_error_cb, (rd_kafka_conf_t *, void (*)(rd_kafka_t *, int, const char *, void *)))                 \
    X(void, conf_set_log_cb, (rd_kafka_conf_t *, void (*)(const rd_kafka_t *, int, const char *, const char *)))       \
    X(void *, opaque, (const rd_kafka_t *))                                                                            \
    X(void, conf_set_dr_msg_cb,                                                                                        \
      (rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *)))                                 \
    X(rd_kafka_t *, new, (int, rd_kafka_conf_t *, char *, size_t))                                                     \
    X(void, destroy_flags, (rd_kafka_t *, int))                                                                        \
    X(int, poll_set_consumer, (rd_kafka_t *))                                                                          \
    X(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                                          \
    X(void, queue_destroy, (rd_kafka_queue_t *))                                                                       \
    X(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                          \
    X(void, message_destroy, (rd_kafka_message_t *))                                                                   \
    X(int64_t, message_timestamp, (const rd_kafka_message_t *, int *))                                                 \
    X(const char *, message_errstr, (const rd_kafka_message_t *))                                                      \
    X(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                       \
    X(int, header_get_all, (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    X(const char *, topic_name, (const rd_kafka_topic_t *))                                                            \
    X(rd_kafka_topic_partition_list_t *, topic_partition_list_new, (int))                                              \
    X(void, topic_partition_list_destroy, (rd_kafka_topic_partition_list_t *))                                         \
    X(rd_kafka_topic_partition_t *, topic_partition_list_add,                                                          \
      (rd_kafka_topic_partition_list_t *, const char *, int32_t))                                                      \
    X(rd_kafka_error_t *, incremental_assign, (rd_kafka_t *, const rd_kafka_topic_partition_list_t *))                 \
    X(rd_kafka_error_t *, incremental_unassign, (rd_kafka_t *, const rd_kafka_topic_partition_list_t *))               \
    X(int, pause_partitions, (rd_kafka_t *, rd_kafka_topic_partition_list_t *))                                        \
    X(int, resume_partitions, (rd_kafka_t *, rd_kafka_topic_partition_list_t *))                                       \
    X(int, error_code, (const rd_kafka_error_t *))                                                                     \
    X(const char *, error_string, (const rd_kafka_error_t *))                                                          \
    X(int, error_is_fatal, (const rd_kafka_error_t *))                                                                 \
    X(int, error_is_retriable, (const rd_kafka_error_t *))                                                             \
    X(int, error_txn_requires_abort, (const rd_kafka_error_t *))                                                       \
    X(void, error_destroy, (rd_kafka_error_t *))                                                                       \
    X(int, fatal_error, (rd_kafka_t *, char *, size_t))                                                                \
    X(int, producev, (rd_kafka_t *, ...))                                                                              \
    X(rd_kafka_headers_t *, headers_new, (size_t))                                                                     \
    X(int, header_add, (rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t))                           \
    X(void, headers_destroy, (rd_kafka_headers_t *))                                                                   \
    X(int, poll, (rd_kafka_t *, int))                                                                                  \
    X(int, flush, (rd_kafka_t *, int))                                                                                 \
    X(int, purge, (rd_kafka_t *, int))                                                                                 \
    X(int, outq_len, (rd_kafka_t *))                                                                                   \
    X(rd_kafka_error_t *, init_transactions, (rd_kafka_t *, int))                                                      \
    X(rd_kafka_error_t *, begin_transaction, (rd_kafka_t *))                                                           \
    X(rd_kafka_error_t *, send_offsets_to_transaction,                                                                 \
      (rd_kafka_t *, const rd_kafka_topic_partition_list_t *, const rd_kafka_consumer_group_metadata_t *, int))        \
    X(rd_kafka_error_t *, commit_transaction, (rd_kafka_t *, int))                                                     \
    X(rd_kafka_error_t *, abort_transaction, (rd_kafka_t *, int))                                                      \
    X(rd_kafka_error_t *, consumer_group_metadata_read,                                                                \
      (rd_kafka_consumer_group_metadata_t **, const void *, size_t))                                                   \
    X(void, consumer_group_metadata_destroy, (rd_kafka_consumer_group_metadata_t *))                                   \
    X(int, get_watermark_offsets, (rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *))                         \
    X(int, offsets_for_times, (rd_kafka_t *, rd_kafka_topic_partition_list_t *, int))                                  \
    X(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *, void *))                                             \
    X(void, topic_destroy, (rd_kafka_topic_t *))                                                                       \
    X(int, metadata, (rd_kafka_t *, int, rd_kafka_topic_t *, const struct rd_kafka_metadata **, int))                  \
    X(void, metadata_destroy, (const struct rd_kafka_metadata *))

#endif
