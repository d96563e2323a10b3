import errno
import io
import os
import random
import re
import resource
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, encode_image, load_image, open_image, read_header, to_rgb


def test_a_bad_image_names_the_file_and_who_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    truncated = tmp_path / "truncated.jpg"
    truncated.write_bytes(whole.read_bytes()[:400])
    (tmp_path / "text.jpg").write_text("no image")
    for name, problem in (
        ("none.jpg", "not found"),
        ("x" * 3000, "not found"),
        ("truncated.jpg", "unreadable"),
        ("text.jpg", "unreadable"),
    ):
        with pytest.raises(UserError, match=rf"{problem}: .*{name} \(needed by question 7\)"):
            load_image(tmp_path / name, needed_by="question 7")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match="too large"):
        load_image(whole)


@pytest.mark.parametrize("read", [load_image, open_image, read_header])
def test_an_error_that_may_pass_is_not_taken_for_a_bad_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    Image.new("RGB", (8, 8)).save(path := tmp_path / "good.png")
    with pytest.raises(OSError, match=r"Input/output error: '/proc/self/mem'"):
        read(Path("/proc/self/mem"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match=r"Too many open files: '.*good\.png'"):
            read(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", lambda *_, **__: bytes(1 << 60))
        with pytest.raises(MemoryError, match=r"too little memory to read the image .*good\.png"):
            read(path)


def test_a_file_whose_state_is_unknown_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(path := tmp_path / "good.png")

    def unreachable(name: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", str(name))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", unreachable)
        with pytest.raises(OSError, match=r"Stale file handle: '.*good\.png'"):
            load_image(path)


def test_a_transparent_palette_gives_the_same_pixels_without_a_warning(tmp_path: Path) -> None:
    draw = random.Random(0)
    image = Image.new("P", (16, 16))
    image.putpalette(draw.randbytes(3 * 256))
    image.putdata(list(draw.randbytes(256)))
    image.save(tmp_path / "p.png", transparency=draw.randbytes(256))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        before = Image.open(tmp_path / "p.png").convert("RGB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = load_image("p.png", root=tmp_path)
    assert after.mode == "RGB"
    assert after.tobytes() == before.tobytes()


RAMP = np.arange(24).reshape(4, 6)


def grey(image: Image.Image) -> list[int]:
    """Return the grey values of an RGB image, row by row; none may have a colour."""
    pixels = np.asarray(image).reshape(-1, 3)
    assert (pixels == pixels[:, :1]).all()
    return pixels[:, 0].tolist()


def expected(values: np.ndarray) -> list[int]:
    return np.rint(values).astype(int).ravel().tolist()


DEEP = {
    "dark 16-bit PNG": ("png", RAMP.astype(np.uint16) * 10, RAMP * 10 / 257),
    "dark 16-bit PGM": ("pgm", RAMP.astype(np.uint16) * 10, RAMP * 10 / 257),
    "16-bit TIFF": ("tif", RAMP.astype(np.uint16) * 2849, RAMP * 2849 / 257),
    "16-bit TIFF, other end first": ("tif", (RAMP * 2849).astype(">u2"), RAMP * 2849 / 257),
    "16-bit JPEG 2000": ("jp2", RAMP.astype(np.uint16) * 2849, RAMP * 2849 / 257),
    "32-bit TIFF of 8 bits": ("tif", RAMP.astype(np.int32) * 10, RAMP * 10),
    "32-bit TIFF of 16 bits": ("tif", RAMP.astype(np.int32) * 2849, RAMP * 2849 / 257),
    "32-bit TIFF": ("tif", RAMP.astype(np.int32) * 90_000_000, RAMP * 255 / 23),
    "32-bit TIFF below zero": ("tif", RAMP.astype(np.int32) * 1000 - 5000, RAMP * 255 / 23),
    "float TIFF of 0..1": ("tif", (RAMP / 46).astype(np.float32), RAMP * 255 / 46),
    "float TIFF of 8 bits": ("tif", (RAMP * 10).astype(np.float32), RAMP * 10),
    "float TIFF of 16 bits": ("tif", (RAMP * 2849).astype(np.float32), RAMP * 2849 / 257),
    "float TIFF": ("tif", (RAMP * 0.3 - 1).astype(np.float32), RAMP * 255 / 23),
    "float TIFF of one value": ("tif", np.full((4, 6), 7.5, np.float32), RAMP * 0),
}


@pytest.mark.parametrize("name", DEEP)
def test_grey_of_more_than_eight_bits_keeps_its_shades(tmp_path: Path, name: str) -> None:
    ending, values, shades = DEEP[name]
    Image.fromarray(values).save(path := tmp_path / f"deep.{ending}")
    assert np.abs(np.subtract(grey(load_image(path)), expected(shades))).max() <= (ending == "jp2")


def test_unsigned_32_bits_are_brighter_than_half_of_them(tmp_path: Path) -> None:
    values = np.array([[0, 2**31 - 1, 2**32 - 1]], np.uint32)
    image = Image.fromarray(values.view(np.int32))
    image.save(path := tmp_path / "unsigned.tif")
    signed, unsigned = (struct.pack("<HHIHH", 339, 3, 1, kind, 0) for kind in (2, 1))
    assert path.read_bytes().count(signed) == 1
    path.write_bytes(path.read_bytes().replace(signed, unsigned))
    assert grey(load_image(tmp_path / "unsigned.tif")) == [0, 127, 255]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    Image.fromarray(np.array([[0, value]], np.float32)).save(tmp_path / "bad.tif")
    with pytest.raises(BadImage, match=r"unreadable: .*bad\.tif \(needed by q7\): it holds NaN or infinite values"):
        load_image(tmp_path / "bad.tif", needed_by="q7")


def test_each_mode_of_eight_bits_becomes_its_rgb(tmp_path: Path) -> None:
    red, clear = (200, 30, 40), (200, 30, 40, 0)
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, *red])
    made = {
        "bits.png": (Image.new("1", (1, 1), 1), (255, 255, 255)),
        "grey.png": (Image.new("L", (1, 1), 77), (77, 77, 77)),
        "grey_clear.png": (Image.new("LA", (1, 1), (77, 0)), (77, 77, 77)),
        "palette.png": (palette, red),
        "palette.gif": (palette, red),
        "colour.png": (Image.new("RGB", (1, 1), red), red),
        "clear.png": (Image.new("RGBA", (1, 1), clear), red),
        "clear.tif": (Image.new("RGBA", (1, 1), clear), red),
        "print.tif": (Image.new("CMYK", (1, 1), (0, 255, 255, 51)), (204, 0, 0)),
        "print.jpg": (Image.new("CMYK", (8, 8), (0, 0, 0, 255)), (0, 0, 0)),
        "video.tif": (Image.new("YCbCr", (1, 1), (76, 85, 255)), (254, 0, 0)),
        "lab.tif": (Image.new("LAB", (1, 1), (255, 128, 128)), (255, 255, 255)),
    }
    for name, (image, colour) in made.items():
        # Pillow 12 can't read its own uncompressed YCbCr TIFFs
        options = {"palette.gif": {"transparency": 1}, "video.tif": {"compression": "tiff_lzw"}}
        image.save(tmp_path / name, **options.get(name, {}))
        assert np.abs(np.subtract(load_image(tmp_path / name).getpixel((0, 0)), colour)).max() <= 1, name


@pytest.mark.parametrize("mode", ["La", "PA", "RGBa", "RGBX", "HSV", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"])
def test_further_modes_in_memory_become_rgb(mode: str) -> None:
    assert to_rgb(Image.new(mode, (3, 2))).getpixel((2, 1)) == (0, 0, 0)


def test_transparency_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    Image.new("RGBA", (1, 1), (1, 2, 3, 77)).save(tmp_path / "clear.png")
    assert open_image(tmp_path / "clear.png", "RGBA").getpixel((0, 0)) == (1, 2, 3, 77)
    assert open_image((tmp_path / "clear.png").read_bytes()).getpixel((0, 0)) == (1, 2, 3)


TURNS = {1: [[0, 1], [2, 3]], 2: [[1, 0], [3, 2]], 3: [[3, 2], [1, 0]], 4: [[2, 3], [0, 1]]}
TURNS |= {5: [[0, 2], [1, 3]], 6: [[2, 0], [3, 1]], 7: [[3, 1], [2, 0]], 8: [[1, 3], [0, 2]]}


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", TURNS)
def test_an_image_stands_upright(tmp_path: Path, orientation: int, ending: str) -> None:
    corners = np.kron(np.array([[0, 1], [2, 3]]) * 80, np.ones((16, 24))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(corners).save(path := tmp_path / f"turned.{ending}", exif=exif)
    image = load_image(path)
    width, height = image.size
    assert (width, height) == ((48, 32) if orientation < 5 else (32, 48))
    seen = [[image.getpixel((x, y))[0] for x in (8, width - 8)] for y in (8, height - 8)]
    assert np.abs(np.subtract(np.divide(seen, 80), TURNS[orientation])).max() < 0.1
    assert to_rgb(image).tobytes() == image.tobytes(), "it would be turned again"
    assert not image.info


def test_a_turned_image_of_16_bits_is_turned_and_scaled(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(tmp_path / "deep.png", exif=exif)
    image = load_image(tmp_path / "deep.png")
    assert (image.size, grey(image)) == ((1, 2), [0, 255])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("orientation", [b"Exif\0\0II*", b"Exif\0\0MM\0*\0\0\0\xff\0\1", b"nonsense"])
def test_damaged_exif_leaves_an_image_as_it_is(tmp_path: Path, orientation: bytes) -> None:
    image = Image.effect_noise((48, 32), 50)
    image.save(tmp_path / "plain.png")
    image.save(tmp_path / "damaged.png", exif=orientation)
    assert load_image(tmp_path / "damaged.png").tobytes() == load_image(tmp_path / "plain.png").tobytes()


def test_any_damage_is_a_bad_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    draw = random.Random(7)
    files = []
    for ending in ("jpg", "png", "gif", "tif", "webp", "avif", "dds", "bmp", "jp2", "tga", "ico", "qoi"):
        Image.effect_noise((24, 20), 80).convert("RGB").save(path := tmp_path / f"whole.{ending}")
        files.append(path.read_bytes())
    refused = 0
    for _ in range(600):
        content = bytearray(draw.choice(files))
        for _ in range(draw.randrange(1, 5)):
            content[draw.randrange(min(len(content), 300))] = draw.randrange(256)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert open_image(bytes(content)).mode == "RGB"
            except BadImage:
                refused += 1
    assert 100 < refused < 500


def test_a_header_is_read_without_decoding(tmp_path: Path) -> None:
    Image.effect_noise((64, 48), 50).save(path := tmp_path / "whole.jpg")
    path.write_bytes(path.read_bytes()[:400])
    header = read_header(path)
    assert (header.format, header.width, header.height) == ("jpeg", 64, 48)
    with pytest.raises(BadImage, match="5 bytes"):
        read_header(b"hello")


@pytest.mark.parametrize("size", [(201, 1), (1, 65_500), (3, 601), (30_000, 2)])
def test_a_strip_is_refused_by_name_and_a_narrow_image_is_read(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.new("RGB", size).save(path := tmp_path / "strip.png")
    problem = rf"image too narrow: {{}}{size[0]:,} × {size[1]:,} pixels, with one side more than 200 times the other"
    for read in (load_image, open_image, read_header):
        with pytest.raises(BadImage, match=problem.format(".*strip.png: ")):
            read(path)
    with pytest.raises(BadImage, match=problem.format(".*: ")):
        to_rgb(Image.new("RGB", size))
    Image.new("RGB", (600, 3)).save(path)
    assert load_image(path).size == (600, 3)


def png(**options: object) -> bytes:
    """Return a small image that is stored turned by 180 degrees, by its EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 3
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, "PNG", exif=exif, **options)
    return file.getvalue()


def texts(*chunks: tuple[str, bool, int]) -> PngImagePlugin.PngInfo:
    """Return texts, each with its keyword, True if it is compressed, and its length."""
    info = PngImagePlugin.PngInfo()
    for keyword, zipped, length in chunks:
        info.add_text(keyword, "x" * length, zip=zipped)
    return info


@pytest.mark.parametrize(
    "options",
    [{"icc_profile": bytes(2 << 20)}, {"pnginfo": texts(*[("a", False, 5 << 20)] * 12)}],
    ids=["profile", "texts"],
)
def test_a_png_with_large_texts_and_profiles_is_read(options: dict[str, object]) -> None:
    assert open_image(png(**options)).tobytes() == open_image(png()).tobytes()
    assert read_header(png(**options)) == read_header(png())


def test_a_png_whose_texts_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(BadImage, match=r"too large|too much memory"):
        open_image(png(pnginfo=texts(("a", True, 80 << 20))))


@pytest.mark.parametrize(
    ("ending", "options", "mode", "kept"),
    [
        ("jpg", {"quality": 60}, "RGB", True),
        ("jpg", {}, "L", True),
        ("png", {}, "RGB", True),
        ("webp", {}, "RGB", True),
        ("jpg", {}, "CMYK", False),
        ("jpg", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"}, "RGB", False),
        ("png", {}, "RGBA", False),
        ("png", {}, "I;16", False),
        ("tif", {}, "RGB", False),
        ("gif", {}, "P", False),
    ],
)
def test_an_image_is_sent_in_its_own_bytes_if_any_server_reads_the_same(
    tmp_path: Path, ending: str, options: dict[str, object], mode: str, kept: bool
) -> None:
    Image.new(mode, (30, 20)).save(path := tmp_path / f"a.{ending}", **options)
    image = load_image(path)
    mime, content = encode_image(image)
    assert (content == path.read_bytes()) is kept
    assert open_image(content).size == image.size
    assert mime == (f"image/{ending.replace('jpg', 'jpeg')}" if kept else "image/jpeg")
    assert encode_image(image.crop((0, 0, 9, 9)))[0] == "image/jpeg"
    small = open_image(encode_image(image, 54)[1])
    assert sorted(small.size) == [6, 9]
    assert encode_image(image, 600) == (mime, content)


def test_images_are_opened_in_one_module() -> None:
    """No exception: whoever calls Pillow's `open` elsewhere sees other pixels than the rest."""
    root = Path(__file__).parents[2]
    folders = ("core", "models", "metrics", "retrieval", "data_builders", "inference", "train", "benchmarks")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(files) > 400
    opened = re.compile(r"\bImage\.open\(|\bImageFile\b|from PIL\.Image import|import PIL\b|exif_transpose|imread\(")
    assert [path for path in files if opened.search(path.read_text())] == [root / "core/images.py"]
