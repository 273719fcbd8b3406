"""The Free Spoken Digit Dataset, from its repository's archive of wav files or a packed file."""

from __future__ import annotations

import io
import re
import wave
import zipfile
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from secateur.datasets.dataset import DatasetError, SpokenDigits
from secateur.datasets.downloads import Downloader
from secateur.datasets.resources import DataDir, Resource, obtain_values
from secateur.datasets.table_formats import hash_values

__all__ = ["DESCRIPTION", "LICENCE", "RECORDINGS", "SPOKEN_DIGITS", "load_spoken_digits"]

RECORDINGS = 3000
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
SAMPLE_RATE = 8000
SHA256 = "f8363c6ed6aa58a865ee1af7cfb1c60158e68107c743560c1ef9d1c7ed871336"
# In the order of hashing.
FIELDS = {"audio": "<i2", "length": "<i4", "digit": "<i1", "speaker": "<i1", "take": "<i1"}
DESCRIPTION = "Spoken digits: 6 speakers, 50 takes of each, 8 kHz."
SOURCE = "Jackson et al., Free Spoken Digit Dataset, version 1.0.10"
LICENCE = "CC BY-SA 4.0"
URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.zip"

Fields = dict[str, np.ndarray]


def load_spoken_digits(data_dir: DataDir = None) -> SpokenDigits:
    """Load the spoken digits; the search, download and checks are those of `load`.

    Args:
        data_dir: Folder to search first, for `fsdd/fsdd.npz` or the repository's archive.

    Returns:
        3000 recordings, ordered by file name.

    Raises:
        DatasetError: The data cannot be obtained, or are not the expected ones.
    """
    fields, _ = obtain_values(SPOKEN_DIGITS, data_dir, Downloader())
    return SpokenDigits(
        audio=np.split(fields["audio"], np.cumsum(fields["length"])[:-1]),
        digit=fields["digit"],
        speaker=fields["speaker"],
        take=fields["take"],
        speaker_names=SPEAKERS,
        sample_rate=SAMPLE_RATE,
        description=DESCRIPTION,
        source=SOURCE,
        licence=LICENCE,
    )


def read_recordings(content: bytes) -> Fields:
    """Return all recordings of an archive of `{digit}_{speaker}_{take}.wav`, or of our own npz."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        names = archive.namelist()
        if "audio.npy" in names:
            packed = np.load(io.BytesIO(content), allow_pickle=False)
            return {field: packed[field].astype(dtype) for field, dtype in FIELDS.items()}
        wavs = {PurePosixPath(name).name: name for name in names if name.endswith(".wav")}
        return _join_recordings({file: archive.read(name) for file, name in sorted(wavs.items())})
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, ValueError) as error:
        raise DatasetError(f"it is not a readable archive of recordings: {error}") from None


def parse_fields(contents: Sequence[bytes]) -> Fields:
    """Return the recordings, checked."""
    fields = read_recordings(contents[0])
    sha256 = hash_values(*fields.values())
    if sha256 != SHA256:
        raise DatasetError(
            f"other recordings ({len(fields['length'])} of them) than the {RECORDINGS} of version "
            f"1.0.10: their SHA-256 is {sha256[:12]}…, not {SHA256[:12]}…"
        )
    return fields


def _join_recordings(files: dict[str, bytes]) -> Fields:
    if not files:
        raise DatasetError("the archive has no wav files")
    audio, labels = [], []
    for file, content in files.items():
        match = re.fullmatch(r"(\d)_([a-z]+)_(\d+)\.wav", file)
        if match is None or match[2] not in SPEAKERS:
            raise DatasetError(f"{file} is not named after a digit, a known speaker and a take")
        audio.append(_read_samples(file, content))
        labels.append((len(audio[-1]), int(match[1]), SPEAKERS.index(match[2]), int(match[3])))
    columns = [np.concatenate(audio), *np.array(labels).T]
    return {
        field: column.astype(dtype)
        for (field, dtype), column in zip(FIELDS.items(), columns, strict=True)
    }


def _read_samples(file: str, content: bytes) -> np.ndarray:
    try:
        with wave.open(io.BytesIO(content)) as recording:
            kind = (recording.getnchannels(), recording.getsampwidth(), recording.getframerate())
            if kind != (1, 2, SAMPLE_RATE):
                raise DatasetError(f"{file} is not mono, 16 bits, {SAMPLE_RATE} Hz")
            return np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
    except (wave.Error, EOFError) as error:
        raise DatasetError(f"{file} is damaged: {error}") from None


def _encode_npz(fields: Fields, _: Sequence[bytes]) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, **fields)  # type: ignore[arg-type]
    return packed.getvalue()


SPOKEN_DIGITS: Resource[Fields] = Resource(
    name="spoken_digits",
    stored="fsdd/fsdd.npz",
    patterns=("fsdd.npz", "free-spoken-digit-dataset*.zip", "fsdd/free-spoken-digit-dataset*.zip"),
    urls=(URL,),
    wheel=None,
    parse=parse_fields,
    encode=_encode_npz,
)
