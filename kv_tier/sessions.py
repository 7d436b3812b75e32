"""Which manifest of a session holds, and who may write the next one.

    root/sessions/TENANT/ID/00000000000000000012.manifest     generation 12
                            00000000000000000011.manifest     the one before it
                            00000000000000000007.fence        empty; fence 7 was taken

A writer takes a fence and commits with it; whoever takes another one shuts the earlier writers out,
whatever they do later. take, commit and drop exclude each other by the folder's lock, so that "is
it still mine?" and "now it is so" are one step. head needs no lock: a manifest never changes.

Invariants:
  1. a fence is given out once, and durable before take returns
  2. only the highest fence commits, each generation higher than the head
  3. what commit returned for stays the head until a later commit, or drop, returns
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kv_tier.files import TEMPORARY, DiskError, OsFiles, lock_folder
from kv_tier.format import CorruptFile, NewerVersion, is_session_id, is_tenant
from kv_tier.manifest import Manifest, decode_manifest, encode_manifest

NAME: Final = re.compile(r"([0-9]{20})\.(manifest|fence)")


class StaleFence(Exception):
    """Another writer was there: the fence is not the last one taken, or the generation is there.

    Nothing was written.
    """

    def __init__(self, manifest: Manifest, reason: str) -> None:
        super().__init__(f"session {manifest.tenant}/{manifest.session_id}: {reason}")
        self.tenant = manifest.tenant
        self.session_id = manifest.session_id
        self.fence = manifest.fence


class BadName(ValueError):
    """A tenant or session id that is no name of ours: it never becomes a path."""


class Sessions:
    """All sessions under one root. Thread-safe; any number of processes at once.

    Every method that is given a tenant and a session id raises BadName for what is no name.
    """

    def __init__(self, root: Path, files: OsFiles | None = None) -> None:
        self.root = root
        self._files = files or OsFiles()

    def take(self, tenant: str, session_id: str, fence: int) -> int:
        """The right to commit, away from whoever had it: max(fence, known + 1), durable.

        fence  what the caller counted; a counter that was lost catches up here

        Raises DiskFull, DiskError.
        """
        with self._alone(tenant, session_id) as folder:
            return self._take(folder, fence)

    def head(self, tenant: str, session_id: str) -> Manifest | None:
        """The last commit that is whole; None: there is none. Damaged generations are passed over.

        Raises NewerVersion when the last whole one is of a later format, DiskError.
        """
        return self._head(self.folder(tenant, session_id))

    def damaged(self, tenant: str, session_id: str) -> int:
        """The newest generation whose manifest is there and cannot be read; 0: there is none.

        Raises NewerVersion, DiskError.
        """
        folder = self.folder(tenant, session_id)
        for generation in reversed(names_in(folder, "manifest")):
            try:
                self._read(folder, generation)
            except CorruptFile:
                return generation
            except DiskError as error:
                if error.number == errno.EIO:
                    return generation
                if error.number != errno.ENOENT:
                    raise
            else:
                return 0
        return 0

    def commit(self, manifest: Manifest) -> None:
        """Durable when it returns; the whole generation before it stays until the next commit.

        Raises StaleFence, DiskFull, DiskError, NewerVersion; then the head is what it was.
        """
        data = encode_manifest(manifest)
        folder = self.folder(manifest.tenant, manifest.session_id)
        with self._inside(folder) as is_there:
            fence = self._known_fence(folder) if is_there else 0
            if manifest.fence != fence:
                raise StaleFence(manifest, f"fence {manifest.fence}, but {fence} is the last taken")
            head = self._head(folder)
            if head is not None and head.generation >= manifest.generation:
                raise StaleFence(manifest, f"generation {head.generation} is there already")
            self._put(folder / manifest_name(manifest.generation), data)
            self._tidy(folder, {manifest.generation, head.generation if head else 0})

    def drop(self, tenant: str, session_id: str) -> bool:
        """Forget the session. False: there was none. Whoever is writing can no longer commit.

        Its fence stays until sweep. Raises DiskFull, DiskError.
        """
        folder = self.folder(tenant, session_id)
        with self._inside(folder) as is_there:
            generations = names_in(folder, "manifest") if is_there else []
            for generation in generations:  # upwards, so that no older one is ever the head
                if generation == generations[-1]:
                    self._files.sync_folder(folder)
                self._files.remove(folder / manifest_name(generation))
            if is_there:
                self._take(folder, 0)
        return bool(generations)

    def ids(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """(tenant, session id) of every session that has a manifest, in no order."""
        for folder in self._folders(tenant):
            if any(name.endswith(".manifest") for name in listed(folder)):
                yield folder.parent.name, folder.name

    def sweep(self, before_ms: int) -> int:
        """Take older temporary files and folders of dropped sessions away; their number."""
        swept = 0
        for folder in self._folders(None):
            names = listed(folder)
            lives = any(name.endswith(".manifest") for name in names)
            if lives and not any(name.startswith(TEMPORARY) for name in names):
                continue
            with suppress(DiskError), self._inside(folder) as is_there:
                swept += self._sweep(folder, before_ms) if is_there else 0
        return swept

    def folder(self, tenant: str, session_id: str) -> Path:
        """Where a session lies, if it is there."""
        if not is_tenant(tenant) or not is_session_id(session_id):
            raise BadName(f"no session is called {tenant!r}, {session_id!r}")
        return self.root / "sessions" / tenant / session_id

    @contextmanager
    def _alone(self, tenant: str, session_id: str) -> Iterator[Path]:
        """The session's folder, made if need be, its name durable, and nobody else in it."""
        folder = self.folder(tenant, session_id)
        while (fd := lock_folder(folder)) is None:
            self._files.make_folders(self.root, "sessions", tenant, session_id)
        try:
            if not names_in(folder, "fence"):  # whoever made the folder may not have come so far
                self._files.make_folders(self.root, "sessions", tenant, session_id)
            yield folder
        finally:
            os.close(fd)

    @contextmanager
    def _inside(self, folder: Path) -> Iterator[bool]:
        """Nobody else in a session's folder; False: there is no such folder."""
        fd = lock_folder(folder)
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def _take(self, folder: Path, fence: int) -> int:
        """Only inside the lock."""
        fence = max(fence, self._known_fence(folder) + 1)
        older = names_in(folder, "fence")
        self._files.create_empty(folder / fence_name(fence))
        self._files.sync_folder(folder)
        for number in older:
            with suppress(DiskError):
                self._files.remove(folder / fence_name(number))
        return fence

    def _known_fence(self, folder: Path) -> int:
        """The last fence taken; should its file be lost, the head's writer's."""
        taken = names_in(folder, "fence")
        if taken:
            return taken[-1]
        head = self._head(folder)
        return head.fence if head else 0

    def _head(self, folder: Path) -> Manifest | None:
        while True:
            for generation in reversed(names_in(folder, "manifest")):
                try:
                    return self._read(folder, generation)
                except NewerVersion:
                    raise
                except CorruptFile:
                    continue
                except DiskError as error:
                    if error.number == errno.ENOENT and not os.path.lexists(error.path):
                        break  # a commit tidied up since we listed the names: look again
                    if error.number not in (errno.EIO, errno.ENOENT):
                        raise
            else:
                return None

    def _read(self, folder: Path, generation: int) -> Manifest:
        path = folder / manifest_name(generation)
        manifest = decode_manifest(self._files.perform(path, path.read_bytes), path)
        said = (manifest.tenant, manifest.session_id, manifest.generation)
        if said != (folder.parent.name, folder.name, generation):
            raise CorruptFile(path, f"it is {said}, under another's name")
        return manifest

    def _put(self, path: Path, data: bytes) -> None:
        """Only inside the lock."""
        self._files.write_file(path, len(data), [(0, data)])
        try:
            self._files.sync_folder(path.parent)
        except DiskError:
            with suppress(DiskError):
                self._files.remove(path)
            raise

    def _tidy(self, folder: Path, kept: set[int]) -> None:
        """Older generations go, and what a killed writer left. The commit holds already."""
        leftover = [name for name in listed(folder) if name.startswith(TEMPORARY)]
        leftover += [manifest_name(g) for g in names_in(folder, "manifest") if g not in kept]
        for name in leftover:
            with suppress(DiskError):
                self._files.remove(folder / name)

    def _sweep(self, folder: Path, before_ms: int) -> int:
        """Only inside the lock."""
        names = listed(folder)
        old = [name for name in names if (folder / name).lstat().st_mtime_ns < before_ms * 10**6]
        is_over = old == names and not names_in(folder, "manifest")
        gone = names if is_over else [name for name in old if name.startswith(TEMPORARY)]
        for name in gone:
            self._files.remove(folder / name)
        if is_over:
            self._files.remove_folder(folder)
        return len([name for name in gone if name.startswith(TEMPORARY)]) + is_over

    def _folders(self, tenant: str | None) -> Iterator[Path]:
        """Of every session, also of dropped ones."""
        root = self.root / "sessions"
        for name in filter(is_tenant, listed(root) if tenant is None else [tenant]):
            yield from (root / name / other for other in filter(is_session_id, listed(root / name)))


def manifest_name(generation: int) -> str:
    """Of the file of one generation."""
    return f"{generation:020}.manifest"


def fence_name(fence: int) -> str:
    """Of the file that says that this fence was taken."""
    return f"{fence:020}.fence"


def names_in(folder: Path, kind: str) -> list[int]:
    """The numbers of the fences, or of the manifests, in a session's folder; upwards."""
    named = [NAME.fullmatch(name) for name in listed(folder)]
    return sorted(int(name[1]) for name in named if name and name[2] == kind)


def listed(folder: Path) -> list[str]:
    """The names in a folder; none when it is gone, or is no folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
