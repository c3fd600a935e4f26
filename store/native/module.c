/* The table of the module `standfast.store._native`.
 *
 * Rules of this file: names and their homes; one interpreter a process (single-phase initialisation says so). */
#include "native.h"

static PyMethodDef functions[] = {
    {"load", load_library, METH_O,
     "load(path) -> version\n\nUse the librdkafka at this path, which the process must have loaded already. Raises "
     "OSError for one that is not loaded, lacks a function, or is older or newer than tried."},
    {"columns_of", columns_of, METH_VARARGS,
     "columns_of(rows, least_ms, most_ms) -> (keys, values, timestamps), tuples\n\nNone if `rows` is no list itself, or has a "
     "row that is not (bytes or None, bytes or None, timestamp within both bounds, no headers): check it in Python."},
    {"headed", headed_rows, METH_VARARGS,
     "headed(keys, rows, least_ms, most_ms) -> bool\n\nWhether each row of a store is bytes that begin with a timestamp "
     "within both bounds, and each key is bytes; two tuples of one length."},
    {"part_of", part_of_columns, METH_VARARGS,
     "part_of(topic, partition, offsets, timestamps, keys, values) -> Part\n\nA part of these columns of one length. "
     "Keys and values are lists or tuples, none of a subclass; a key or value may be None."},
    {"encoder", encoder, METH_VARARGS,
     "encoder(serialize, refuse, plain) -> encode\n\nA function for bytes of a key or a value. `refuse(error)` answers "
     "where `serialize` fails, and for None, without an error. Whether the serde is that of bytes: then these pass."},
    {"putter", putter, METH_VARARGS,
     "putter(writer, family, encode_key, encode_value, time_of) -> put\n\nSee `Buffer.putter` in store/buffer/buffer.py."},
    {"digest_of", digest_of, METH_O,
     "digest_of(path) -> int\n\n64 bits that accidents to a file change; not against an attacker. Raises OSError."},
    {"merge", merge_files, METH_VARARGS,
     "merge(paths, threads, spills, fold, segment, deletes, block_bytes, look) -> ([(entries, deletes, first key, last "
     "key, first key of a row that is no delete, or None) or None], deletes that were left out)\n\nWrite the rows of one segment, of all spills, oldest first, and of "
     "the sorted fold, as files that RocksDB ingests: one for each path, a range of keys each; None stands for a file "
     "that would be empty. Of rows with one key the newest counts. `look()` is called every few megabytes and may raise. "
     "Raises OSError and MemoryError; files may be there in part then."},
    {"merged_rows", merge_rows, METH_VARARGS,
     "merged_rows(spills, fold, segment, after, most) -> (keys, rows, last key or None)\n\nThe next rows of that merge, "
     "at most so many, above the key `after`; None for the first ones. A delete is None. None as the last key: there are "
     "no more."},
    {"json_form", (PyCFunction)(void (*)(void))json_form, METH_FASTCALL,
     "json_form(value, key) -> int\n\nSee `standfast.store.serde.json_form`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Records of Kafka without the interpreter: see native.h.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    native_error = PyErr_NewException("standfast.store._native.Error", NULL, NULL);
    if (native_error == NULL || PyModule_AddObjectRef(module, "Error", native_error) < 0 || init_client(module) < 0 ||
        init_producer(module) < 0 || init_pieces(module) < 0 || init_fold(module) < 0 ||
        init_spill(module) < 0 || init_buffer(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
