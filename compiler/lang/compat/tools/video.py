"""``VideoManager``: frames as images, and a video of them by ffmpeg or Pillow."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..windows import files
from ..windows.drawing import as_array


class VideoManager:
    """Writes frames to ``output_dir/frames`` as 000000.png, .., and makes videos of them.

    Args:
        output_dir: the folder, which is made.
        video_filename: name of the video without its ending; "video" if it is not given.
        width: of the video; that of the first frame if it is not given.
        height: likewise.
        post_processor: an object whose ``process`` changes each frame.
        framerate: frames in a second.
        automatic_build: make the video after 4, 8, 16, .. frames, too.
    """

    def __init__(
        self,
        output_dir: str | Path,
        video_filename: str | None = None,
        width: int | None = None,
        height: int | None = None,
        post_processor: Any = None,
        framerate: int = 24,
        automatic_build: bool = True,
    ) -> None:
        if (width is None) != (height is None):
            raise AssertionError("give both width and height, or none of them")
        self.directory, self.frame_directory = str(output_dir), str(Path(output_dir) / "frames")
        Path(self.frame_directory).mkdir(parents=True, exist_ok=True)
        self.video_filename, self.width, self.height = video_filename, width, height
        self.post_processor, self.framerate, self.automatic_build = post_processor, framerate, automatic_build
        self.frame_counter, self.next_video_checkpoint = 0, 4
        self.frame_fns: list[str] = []

    def get_output_filename(self, suffix: str) -> str:
        """The path of the video with an ending."""
        return str(Path(self.directory) / (Path(self.video_filename or "video").stem + suffix))

    def get_frame_directory(self) -> str:
        """The folder of the frames."""
        return self.frame_directory

    def write_frame(self, img: Any) -> None:
        """Write one frame: (w, h) or (w, h, channels). Of an odd number of pixels, the last row or column is left out."""
        a = as_array(img)
        a = a[: a.shape[0] // 2 * 2, : a.shape[1] // 2 * 2]
        if self.post_processor:
            a = self.post_processor.process(a)
        if self.width is None:
            self.width, self.height = a.shape[:2]
        self.frame_fns.append(f"{self.frame_counter:06d}.png")
        files.write(a, Path(self.frame_directory) / self.frame_fns[-1])
        self.frame_counter += 1
        if self.automatic_build and self.frame_counter == self.next_video_checkpoint:
            self.make_video()
            self.next_video_checkpoint *= 2

    def write_frames(self, images: Iterable[Any]) -> None:
        """Write frames."""
        for img in images:
            self.write_frame(img)

    def clean_frames(self) -> None:
        """Remove the frames."""
        for name in self.frame_fns:
            (Path(self.frame_directory) / name).unlink(missing_ok=True)

    def make_video(self, mp4: bool = True, gif: bool = True) -> None:
        """Make videos of the frames: mp4 by ffmpeg, gif by Pillow. Warns if one of them is not installed; the frames stay."""
        missing = [
            what for what, make in (("mp4", self._mp4), ("gif", self._gif)) if {"mp4": mp4, "gif": gif}[what] and not make()
        ]
        if missing:
            needs = " and ".join({"mp4": "ffmpeg on the PATH for mp4", "gif": "Pillow for gif"}[what] for what in missing)
            warnings.warn(
                f"no video was made: it needs {needs}\n  the frames are in {self.frame_directory}", RuntimeWarning, stacklevel=2
            )

    def _mp4(self) -> bool:
        program = shutil.which("ffmpeg")
        if program is None:
            return False
        form = ["-framerate", str(self.framerate), "-i", str(Path(self.frame_directory) / "%06d.png")]
        size = ["-s:v", f"{self.width}x{self.height}", "-pix_fmt", "yuv420p"]
        command = [program, "-loglevel", "error", *form, *size, "-y", self.get_output_filename(".mp4")]
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0

    def _gif(self) -> bool:
        try:
            pillow = files.pillow()
        except ImportError:
            return False
        frames = [pillow.open(Path(self.frame_directory) / name).convert("RGB") for name in self.frame_fns]
        if not frames:
            return True
        frames[0].save(
            self.get_output_filename(".gif"), save_all=True, append_images=frames[1:], duration=1000 / self.framerate, loop=0
        )
        return True
