"""Download of published files: resumable, checked against a digest, and renamed into place when complete."""

import hashlib
import os
import shutil
import sys
import urllib.error
import urllib.request

from attention_jax.errors import InputError
from attention_jax.files import explain_home_errors

TIMEOUT_SECONDS = 30


def digest(path: str, algorithm: str = "sha256") -> str:
    """Return the file's hexadecimal digest."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@explain_home_errors()
def download(url: str, path: str, expected: str) -> str:
    """Download `url` to `path` unless the file exists; return `path`.

    `expected` is the published digest, "sha256:..." or "sha1:...". An interrupted download leaves `path + ".part"`, and
    the next call requests only the rest; a file with a wrong digest is removed.

    Raises:
      InputError: the download failed; the message has a workaround.
    """
    if os.path.exists(path):
        return path
    algorithm, _, published = expected.partition(":")
    partial_path = path + ".part"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(f"downloading {url}", file=sys.stderr)
    for attempt in range(2):
        try:
            _fetch(url, partial_path)
        except urllib.error.HTTPError as error:
            if (
                error.code == 416 and attempt == 0
            ):  # nothing left to send: the part is whole, or belongs to another version
                if digest(partial_path, algorithm) != published:
                    os.remove(partial_path)
                    continue
            else:
                raise InputError(f"{url} answered {error.code} {error.reason}; {_WAY_AROUND}") from error
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
            raise InputError(f"cannot download {url} ({getattr(error, 'reason', error)}); {_WAY_AROUND}") from error
        break
    actual = digest(partial_path, algorithm)
    if actual != published:
        os.remove(partial_path)
        raise InputError(
            f"{url} has {algorithm} {actual[:12]}..., expected {published[:12]}...: "
            f"it was changed or damaged on its way; {_WAY_AROUND}"
        )
    os.replace(partial_path, path)
    return path


_WAY_AROUND = "get the data elsewhere and give its place with --data.path"


def _fetch(url: str, partial_path: str) -> None:
    """Append the missing bytes of `url` to `partial_path`; a server that cannot resume sends everything again."""
    size = os.path.getsize(partial_path) if os.path.exists(partial_path) else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        announced = response.headers.get("Content-Length")
        resumed = response.status == 206
        with open(partial_path, "ab" if resumed else "wb") as file:
            start = file.tell()
            shutil.copyfileobj(response, file, 1 << 20)
            received = file.tell() - start
    if announced is not None and received != int(announced):
        raise ConnectionError(f"the connection ended after {received} of {announced} bytes; run it again to resume")
