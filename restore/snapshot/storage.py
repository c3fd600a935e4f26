"""A storage of snapshots, through obstore: a local folder, S3 and compatible services, Google Cloud Storage, Azure.

    put_new     creates an object, or finds that the key is taken: the one operation that must be atomic; reads it back
    put_file    uploads a file, in parts where it is large; a reader sees all of it or nothing
    download    reads a file in ranges, so that a broken connection costs one range, and compares its sha256

Rules of this file: the only one that imports obstore. Keys are relative to `<address>/<app>`. Every error leaves as one
of ours, with the address and without credentials: obstore names the request, and services repeat signed parts of it, so
an error's first line is all that is shown, and known secrets in it are replaced. Requests are repeated by obstore, for
server errors and throttling too, up to the storage's patience.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.store import LocalStore, from_url

from standfast.restore.snapshot.address import AZURE, GCS, S3, Address
from standfast.restore.snapshot.names import PROBES
from standfast.restore.snapshot.planning import StoredObject
from standfast.store import files
from standfast.store.errors import BadConfig, Corruption, StandfastError, Unavailable
from standfast.store.failpoint import reach
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.outside import environment, new_id, random_bytes
from standfast.store.process.threads import THREADS

if TYPE_CHECKING:
    from obstore import Bytes
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 4
PIECE_BYTES = 1 << 20
RANGE_BYTES = 4 << 20
# Ranges of one file that are read while one before them is hashed and written: eight downloads hold 96 MiB at most.
RANGES_AHEAD = 2
NOTE_BYTES_MAX = 64 << 20  # a manifest has about 120 bytes a file
REQUEST_MIN_S, REQUEST_MAX_S = 10, 60
CONNECT_TIMEOUT = "5s"
UPLOAD_SILENCE_S = 300
REQUEST_TIMEOUT = "600s"  # of one request, a part or a range: also one that gives a byte now and then ends
RETRIES_MAX = 10  # the patience ends before
PATIENCE_S = 60
PROBE_BYTES = 16 << 10
FIRST, SECOND = b"first", b"second"
SHOWN_MAX = 400
REFUSED = "non-2xx status"  # in the text of an error of obstore: the service has answered
CHECK = "check address, network, rights and credentials"
CREDENTIALS = {
    S3: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    GCS: "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    AZURE: "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
CREATE = "it is not there: create it, since snapshots create none, or correct the address"
CHECK_REMOVAL = f"{CHECK}, and whether an object lock keeps the bucket's objects"
_SECRET_VARIABLES = re.compile(r"(?:AWS|AZURE|GOOGLE)_.*(?:KEY|SECRET|TOKEN|PASSWORD)", re.IGNORECASE)
_QUERY = re.compile(r"\?\S+")
_XML = re.compile(r"<\?xml.*|<Error>.*", re.DOTALL)
_CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,80})</Code>")
# S3 and Google Cloud Storage; Azure; Azure's answer to a removal, which has no code.
_NO_BUCKET = re.compile(r"<Code>(?:NoSuchBucket|ContainerNotFound)</Code>|The specified container does not exist")


class DamagedReads(Unavailable):
    """Bytes that were written just now come back as others. `created`: the object that this call wrote is there."""

    service = "the storage of its snapshots"
    created = False


class Storage:
    """One application's part of a storage. Any number of threads may use it."""

    threads = THREADS  # those of its owner, for requests beside each other

    def __init__(self, address: Address, app: str, *, patience_s: int = PATIENCE_S) -> None:
        self.app = app
        self.where = f"{address.text.rstrip('/')}/{app}"
        self.patience_s = patience_s
        self._address = address
        self._folder = None if address.folder is None else address.folder / app
        self._proved = False
        # For silence, and not for the whole of an answer: up to 24 ranges share a line, which may be a slow one.
        silence_s = max(REQUEST_MIN_S, min(self.patience_s, REQUEST_MAX_S))
        with self._told("opening"):
            self._store = self._open(address, app, silence_s)
            # The silence of an upload lasts until a part is sent, and up to 16 parts share the line.
            self._uploads = self._store if self._folder else self._open(address, app, max(silence_s, UPLOAD_SILENCE_S))

    def _open(self, address: Address, app: str, silence_s: int) -> ObjectStore:
        if self._folder is not None:
            with told("opening the storage of snapshots", self._folder):
                files.make_folder(self._folder, parents=True, exist_ok=True)
            return LocalStore(self._folder)
        config: dict[str, Any] = dict(address.options)
        client: ClientConfig = {
            "read_timeout": f"{silence_s}s",
            "timeout": REQUEST_TIMEOUT,
            "connect_timeout": CONNECT_TIMEOUT,
        }
        if address.plain_http:
            client["allow_http"] = True
        backoff: BackoffConfig = {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        }
        retry: RetryConfig = {
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=self.patience_s),
            "backoff": backoff,
        }
        opened: ObjectStore = from_url(
            f"{address.url}/{app}",
            config=config or None,  # type: ignore[arg-type]  # keys of several services, checked by the library
            client_options=client,
            retry_config=retry,
        )
        return opened

    def prove(self) -> None:
        """Raise BadConfig unless the storage refuses a second object under a key; Unavailable if it does not answer.

        One that gives other bytes than were written does not answer.
        """
        if self._proved:
            return
        kept = self._probe()
        # Twice, since a prune takes a probe that was stopped for longer than the grace for that of a dead process.
        kept = self._probe() if kept != FIRST else kept
        if kept is None:
            raise Unavailable(f"an object that was written to {self.where} just now is not there any more: {CHECK}")
        if kept != FIRST:
            raise BadConfig(
                [
                    f"the storage {self.where} overwrites an object that must be new (put-if-absent, If-None-Match: * "
                    "of S3), so that two instances could overwrite each other's snapshots: use a storage that has it"
                ]
            )
        self._proved = True

    def _probe(self) -> bytes | None:
        """Put two contents under one key; returns the one that is there then. Raises DamagedReads for a third one."""
        # A new key each time: instances that start together probe beside each other.
        key = f"{PROBES}/{new_id('probe', 32)}"
        try:
            self.put_new(key, FIRST)
            reach("snapshot.probe")
            replaced = self.put_new(key, SECOND)
            kept = self._read_back(key)
        finally:
            self._drop_probe(key)
        if kept not in (None, FIRST, SECOND):
            raise self._damaged(key)
        return SECOND if replaced else kept

    def check_reads(self) -> None:
        """Raise DamagedReads if a new object comes back as other bytes, by either kind of request.

        A storage that takes no object from this user cannot be asked.
        """
        key, content = f"{PROBES}/{new_id('probe', 32)}", random_bytes("probe", PROBE_BYTES)
        try:
            self._create(key, content)
        except Unavailable:
            return
        try:
            self._confirm(key, content)
            self._confirm(key, content, lambda: bytes(self.read_range(key, 0, len(content))))
        finally:
            self._drop_probe(key)

    def _confirm(self, key: str, content: bytes, read: Callable[[], bytes] | None = None) -> None:
        """Read an object back; a prune of another process may have removed it meanwhile."""
        found = self._read_back(key, read)
        if found != content and found is not None and self.head(key) is not None:
            raise self._damaged(key)

    def _read_back(self, key: str, read: Callable[[], bytes] | None = None) -> bytes | None:
        try:
            return self.read(key) if read is None else read()
        except Corruption:  # too large, cut, or gone
            return b""

    def _damaged(self, key: str) -> DamagedReads:
        self._proved = False  # nothing is written until a probe comes back whole
        return DamagedReads(
            f"reads of the storage of snapshots {self.where} come back damaged ({key} was written just now, and is "
            "read as other bytes): nothing is written to it, and it counts as away, until they come back whole; check "
            "the network and proxies before it, its disks and this machine's memory"
        )

    def _drop_probe(self, key: str) -> None:
        """Remove a probe. A storage that refuses removals is usable: it keeps every snapshot, and prunes fail."""
        try:
            self.delete(key)
        except Unavailable as error:
            logger.warning("a probe stays: %s", error, extra=as_event("snapshot_probe_stays", to=self.where))

    def put_new(self, key: str, content: bytes) -> bool:
        """Create an object; False if the key is taken by other content. Raises DamagedReads if it is read otherwise."""
        if self._create(key, content):
            if len(content) > NOTE_BYTES_MAX:
                return True  # no reader takes it
            try:
                self._confirm(key, content)
            except DamagedReads as damaged:
                damaged.created = True
                raise
            return True
        # A request that was repeated after a lost answer finds its own object.
        if self.read(key) == content:
            return True
        self.check_reads()
        return False

    def _create(self, key: str, content: bytes) -> bool:
        with self._told(f"writing {key} to"):
            try:
                obstore.put(self._store, key, content, mode="create")
            except AlreadyExistsError:
                return False
            except PermissionDeniedError:
                # Beside an object lock a storage may refuse an object that exists as one without the right to it.
                if self.head(key) is None:
                    raise
                return False
            self._sync(key)
        return True

    def put_file(self, key: str, path: Path, *, pace: Callable[[int], None] | None = None) -> None:
        """Upload a file; the same content may be there already, or be uploaded by another at the same time.

        `pace` is called with the number of bytes before each part of at most `PIECE_BYTES` is sent, and may wait.
        """
        with told("uploading a file of a snapshot", path), self._told(f"writing {key} to"):
            obstore.put(
                self._uploads,
                key,
                path if pace is None else _pieces(path, pace),
                use_multipart=path.stat().st_size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
            self._sync(key)

    def read(self, key: str) -> bytes | None:
        """The content of a manifest or note; None if there is none. Raises Corruption for one that is too large."""
        with self._told(f"reading {key} of"):
            try:
                found = obstore.get(self._store, key)
                # The size comes before the content: an object of another program must not fill the memory.
                if found.meta["size"] > NOTE_BYTES_MAX:
                    raise Corruption(
                        f"{key} of {self.where} has {found.meta['size']} bytes, and a note at most {NOTE_BYTES_MAX}: "
                        "it is none of ours"
                    )
                return bytes(found.bytes())
            except FileNotFoundError as error:
                _absent(error)
                return None

    def head(self, key: str) -> StoredObject | None:
        """An object's size and time; None if there is none."""
        with self._told(f"looking at {key} of"):
            try:
                try:
                    return _stored(obstore.head(self._store, key))
                except BaseError as error:
                    if REFUSED not in str(error):
                        raise
                    # An answer to this request has no body, which says why it is refused: one to the other request has.
                    return _stored(obstore.get(self._store, key).meta)
            except FileNotFoundError as error:
                _absent(error)
                return None

    def list(self, prefix: str) -> list[StoredObject]:
        """All objects below a prefix, by key."""
        with self._told(f"listing {prefix} of"):
            found = [_stored(one) for page in obstore.list(self._store, prefix) for one in page]
        # A local folder lists files that an upload under way has under a temporary name, too.
        return sorted(one for one in found if "#" not in one.key)

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is no error."""
        with self._told(f"removing {key} of", CHECK_REMOVAL):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError as error:
                _absent(error)

    def download(
        self, key: str, path: Path, size: int, sha256: str, step: Callable[[int], None] = lambda count: None
    ) -> None:
        """Read a file to `path`, which is new, and make it durable; `step` gets the bytes of each part.

        Raises Corruption for a missing file and for one whose size or sha256 is another.
        """
        digest, says = hashlib.sha256(), f"its manifest says {size} bytes, sha256 {sha256}"
        # Before anything is read: a size that is not true must cost neither memory nor disk.
        found = self.head(key)
        if found is None or found.bytes != size:
            what = "missing" if found is None else f"damaged: {found.bytes} bytes"
            raise Corruption(f"{key} of {self.where} is {what}; {says}")
        # In ranges: a broken connection costs one of them, and each is asked for again by itself.
        with told("writing a file of a snapshot", path), files.create(path) as file:
            for part in self.read_parts(key, size):
                digest.update(part)
                file.write(part)
                step(len(part))
            file.flush()
            files.sync(file.fileno(), path)
        if digest.hexdigest() != sha256:
            raise Corruption(f"{key} of {self.where} is damaged: sha256 {digest.hexdigest()}; {says}")

    def read_parts(self, key: str, size: int) -> Iterator[Bytes]:
        """The content of a file of this size, range by range, with the next ones under way. Raises as `read_range`."""
        ranges = [(begin, min(RANGE_BYTES, size - begin)) for begin in range(0, size, RANGE_BYTES)]
        if len(ranges) <= 1:
            yield from (self.read_range(key, *one) for one in ranges)
            return
        under_way: deque[Future[Bytes]] = deque()
        with self.threads.pool(RANGES_AHEAD, "standfast-snapshot-range") as pool:
            try:
                for one in ranges:
                    under_way.append(pool.submit(self.read_range, key, *one))
                    if len(under_way) > RANGES_AHEAD:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
            finally:  # the first damaged range decides
                pool.shutdown(wait=False, cancel_futures=True)

    def read_range(self, key: str, begin: int, length: int) -> Bytes:
        """A part of an object. Raises Corruption if the object is absent or ends before."""
        with self._told(f"reading {key} of"):
            try:
                part = obstore.get_range(self._store, key, start=begin, length=length)
            except FileNotFoundError as error:
                _absent(error)
                raise Corruption(f"{key} of {self.where} is missing, though a manifest names it") from None
            except BaseError as error:
                # A range beyond the end of a short file is an error of its own kind in every service.
                known = self.head(key)
                if known is not None and known.bytes < begin + length:
                    raise Corruption(f"{key} of {self.where} has only {known.bytes} bytes") from error
                raise
        # A local folder answers a range beyond the end with the bytes that are there.
        if len(part) != length:
            raise Corruption(f"{key} of {self.where} ends at byte {begin + len(part)}, its manifest says otherwise")
        return part

    def _sync(self, key: str) -> None:
        """Make an object of a local folder durable; a service has done so when it answers."""
        if self._folder is None:
            return
        path = self._folder / key
        # A prune may have removed it already: the upload looks at its files again, and says so.
        with contextlib.suppress(FileNotFoundError):
            files.sync_file(path)
        with contextlib.suppress(FileNotFoundError):
            files.sync_folder(path.parent)

    @contextmanager
    def _told(self, doing: str, check: str = CHECK) -> Iterator[None]:
        try:
            yield
        except StandfastError:
            raise
        except (BaseError, ValueError, OSError) as error:
            raise Unavailable(
                f"{doing} the storage of snapshots {self.where}: {shown(error, environment())}: "
                f"{_fix(error, self._address, check)}"
            ) from None  # the cause repeats the request, which may be signed


def shown(error: BaseException, environment: Mapping[str, str]) -> str:
    """The first line of an error without queries, bodies and known secrets."""
    text = str(error)
    code = _CODE.search(text)
    line = _XML.sub("", text).strip().partition("\n")[0].rstrip(" :-")
    line = _QUERY.sub("", line)
    if code is not None:
        line = f"{line} ({code[1]})"
    for name, value in environment.items():
        if len(value) >= 4 and _SECRET_VARIABLES.fullmatch(name):
            line = line.replace(value, "***")
    if len(line) <= SHOWN_MAX:
        return line
    # The request stands first and the service's answer last; the paths between them are long.
    return f"{line[: SHOWN_MAX // 2]} ... {line[-SHOWN_MAX // 2 :]}"


def _fix(error: BaseException, address: Address, check: str) -> str:
    """The end of an error's text: that the bucket is not there, else `check` with the names of credentials."""
    if address.service and _NO_BUCKET.search(str(error)):
        return f"{address.bucket}: {CREATE}"
    return f"{check} ({CREDENTIALS[address.service]}, or the machine's role)" if address.service else check


def _absent(error: FileNotFoundError) -> None:
    """The answer about an object that is not there. Raises the error if the bucket itself is not."""
    if _NO_BUCKET.search(str(error)):
        raise error


def _pieces(path: Path, pace: Callable[[int], None]) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            pace(len(piece))
            yield piece


def _stored(found: Any) -> StoredObject:
    return StoredObject(found["path"], int(found["size"]), int(found["last_modified"].timestamp() * 1_000))
