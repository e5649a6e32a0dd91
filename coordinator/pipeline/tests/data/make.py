"""Makes the files of this folder; needs Pillow 13 and numpy. NAME.rgb is Image.open(NAME).convert("RGB")."""

from pathlib import Path

import numpy as np
from PIL import Image

OUT = Path(__file__).parent
WIDTH, HEIGHT = 30, 22
SAME_AS_RGB_PNG = ("rgba.png", "lossless.webp", "alpha.webp")
FILTERS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR,
           "bicubic": Image.Resampling.BICUBIC}


def picture():
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = np.stack([128 + 100 * np.sin(x / 6.0) + 0 * y, 6 * x + 0 * y, 8 * y + 0 * x], -1)
    noise = np.random.default_rng(7).normal(0, 12, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def scene():
    """Returns shading, soft texture and a few hard edges, as photographs have."""
    y, x = np.mgrid[0:180, 0:240]
    shade = np.stack([80 + x / 3, 60 + y / 2 + 20 * np.sin(x / 9.0), 200 - (x + y) / 4], -1)
    disc = ((x - 150) ** 2 + (y - 80) ** 2 < 50**2)[..., None] * np.array([60, -40, -90])
    noise = np.random.default_rng(8).normal(0, 3, shade.shape)
    return Image.fromarray(np.clip(shade + disc + noise, 0, 255).astype(np.uint8))


def save(name, image, **options):
    image.save(OUT / name, **options)
    pixels = Image.open(OUT / name).convert("RGB").tobytes()
    if name in SAME_AS_RGB_PNG:
        assert pixels == (OUT / "rgb.png.rgb").read_bytes()
    else:
        (OUT / f"{name}.rgb").write_bytes(pixels)


rgb = picture()
image = Image.fromarray(rgb)
alpha = (6 * np.arange(WIDTH)).astype(np.uint8)
rgba = Image.fromarray(np.dstack([rgb, np.broadcast_to(alpha, (HEIGHT, WIDTH))]))

save("420.jpg", image, quality=85, subsampling=2)
save("progressive.jpg", image, quality=85, progressive=True)
save("cmyk.jpg", image.convert("CMYK"), quality=90)
save("gray.jpg", image.convert("L"), quality=85)
save("rgb.png", image)
save("rgba.png", rgba)
save("palette.png", image.quantize(16))
save("palette_alpha.png", image.quantize(16), transparency=3)
save("one_bit.png", image.convert("1"))
save("gray.png", image.convert("L"))
save("gray_alpha.png", image.convert("LA"))
save("lossless.webp", image, lossless=True)
save("alpha.webp", rgba, lossless=True, exact=True)
save("lossy.webp", image, quality=80)

for name, resample in FILTERS.items():
    for size in ((23, 17), (37, 25)):
        (OUT / f"rgb.png.{name}.{size[0]}x{size[1]}").write_bytes(image.resize(size, resample).tobytes())
    cut = image.crop((2, 3, 27, 19)).resize((16, 16), resample)
    (OUT / f"rgb.png.{name}.crop.16x16").write_bytes(cut.tobytes())

scene().save(OUT / "scene.jpg", quality=85, subsampling=2)
central = Image.open(OUT / "scene.jpg").resize((48, 36), Image.Resampling.BILINEAR).crop((8, 2, 40, 34))
(OUT / "scene.jpg.central.32x32").write_bytes(central.tobytes())
