"""``qd.tools``: PLY files read back, images, videos."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.lang.compat.windows import files
from qdrun.tools import PLYWriter, VideoManager, imread, imresize, imwrite, write_vtk

NUMPY = {"float": "f4", "double": "f8", "int": "i4", "uchar": "u1", "char": "i1", "short": "i2", "ushort": "u2", "uint": "u4"}


def read_ply(path):
    """A reader of PLY by its definition: {element: {property: values}}."""
    head, _, body = Path(path).read_bytes().partition(b"end_header\n")
    lines = head.decode().splitlines()
    assert lines[0] == "ply" and lines[1] in ("format ascii 1.0", f"format binary_{sys.byteorder}_endian 1.0")
    is_text, elements = "ascii" in lines[1], []
    for line in lines[2:]:
        word, *rest = line.split()
        if word == "element":
            elements.append((rest[0], int(rest[1]), []))
        elif word == "property":
            elements[-1][2].append(rest)
    words, place, out = body.split() if is_text else [], 0, {}

    def take(kind):
        nonlocal place
        place += 1 if is_text else np.dtype(NUMPY[kind]).itemsize
        if is_text:
            return np.dtype(NUMPY[kind]).type(words[place - 1].decode())
        return np.frombuffer(body[place - np.dtype(NUMPY[kind]).itemsize : place], NUMPY[kind])[0]

    for name, count, properties in elements:
        found = {p[-1]: [] for p in properties}
        for _ in range(count):
            for p in properties:
                found[p[-1]].append([take(p[2]) for _ in range(int(take(p[1])))] if p[0] == "list" else take(p[0]))
        out[name] = {key: np.array(values) for key, values in found.items()}
    assert place == (len(words) if is_text else len(body))
    return out


@pytest.mark.parametrize("face_type, corners", [("tri", 3), ("quad", 4)])
@pytest.mark.parametrize("text", [False, True])
def test_a_ply_file_has_what_was_added(tmp_path, text, face_type, corners):
    rng = np.random.default_rng()
    at, color = rng.normal(size=(3, 6)).astype(np.float32), rng.uniform(size=(6, 4))
    faces = rng.integers(0, 6, (5, corners))
    writer = PLYWriter(6, 5, face_type, comment="of a test")
    writer.add_vertex_pos(*at)
    writer.add_vertex_rgba(*color.T)
    writer.add_vertex_channel("stress", "double", color[:, :2])
    writer.add_vertex_id()
    writer.add_faces(faces.reshape(-1))
    writer.add_face_channel("kind", "uchar", np.arange(5))
    (writer.export_frame_ascii if text else writer.export_frame)(12, str(tmp_path / "mesh.ply"))
    found = read_ply(tmp_path / "mesh_000012.ply")
    for name, values in zip("xyz", at, strict=True):
        np.testing.assert_allclose(found["vertex"][name], values, rtol=1e-6)
    np.testing.assert_allclose(found["vertex"]["Alpha"], color[:, 3], rtol=1e-6)
    np.testing.assert_array_equal(found["vertex"]["stress_2"], color[:, 1])
    assert found["vertex"]["id"].tolist() == list(range(6)) and found["vertex"]["id"].dtype == np.int32
    np.testing.assert_array_equal(found["face"]["vertex_indices"], faces)
    assert (
        found["face"]["kind"].tolist() == list(range(5))
        and b"comment of a test\n" in (tmp_path / "mesh_000012.ply").read_bytes()
    )


def test_a_ply_file_of_fields_without_faces(tmp_path):
    with qd.init(offline_cache=False):
        x = qd.field(qd.f32, 3)
        x.from_numpy(np.arange(3.0, dtype=np.float32))
        writer = PLYWriter(num_vertices=3)
        writer.add_vertex_pos(x, x, np.zeros(3))
        writer.export_ascii(tmp_path / "a.ply")
    assert (tmp_path / "a.ply").read_text().splitlines()[-2:] == ["1.0 1.0 0.0", "2.0 2.0 0.0"]


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda w: w.export("x.ply"), "the positions of the vertices are missing"),
        (lambda w: w.add_vertex_channel("a", "float", np.zeros(3)), "channel 'a' has 3 numbers for 2"),
        (lambda w: w.add_faces(np.zeros(4, int)), "1 faces have 3 vertices, not 4"),
        (lambda w: (w.add_vertex_pos(*np.zeros((3, 2))), w.add_faces([0, 1, 2]), w.export("x.ply")), "does not exist"),
    ],
)
def test_a_ply_file_that_would_be_broken_is_refused(make, said):
    with pytest.raises(AssertionError, match=said):
        make(PLYWriter(2, 1))


def test_an_unknown_type_of_a_channel_is_left_out_with_a_warning():
    writer = PLYWriter(2)
    with pytest.warns(RuntimeWarning, match="channel 'a' is left out: PLY has no type 'float32'"):
        writer.add_vertex_channel("a", "float32", np.zeros(2))


def test_an_image_is_read_as_it_was_written(tmp_path):
    pytest.importorskip("PIL")
    rng = np.random.default_rng(2)
    for channels in (1, 3, 4):
        image = rng.integers(0, 256, (5, 3, channels)).astype(np.uint8)
        imwrite(image, tmp_path / "a.png")
        np.testing.assert_array_equal(imread(tmp_path / "a.png"), image)
    assert imread(tmp_path / "a.png", 1).shape == (5, 3, 1)
    for given, want in (
        (np.array([[0.0, 0.5], [1.0, 2.0]]), [[0, 127], [255, 255]]),
        (np.array([[0, 65535], [32768, 256]], np.uint16), [[0, 255], [128, 1]]),
    ):
        imwrite(given, str(tmp_path / "b.png"))
        assert imread(str(tmp_path / "b.png"))[..., 0].tolist() == want
    for wrong in (np.zeros((2, 2, 2)), np.zeros((2, 2), np.int64)):
        with pytest.raises(ValueError, match="an image has"):
            imwrite(wrong, tmp_path / "c.png")


def test_png_needs_no_pillow_and_others_say_what_they_need(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "PIL", None)
        imwrite(np.full((4, 2, 3), 7, np.uint8), tmp_path / "a.png")
        with pytest.raises(ImportError, match="image files other than PNG need Pillow"):
            imwrite(np.zeros((4, 2)), tmp_path / "a.jpg")
    assert image.open(tmp_path / "a.png").size == (4, 2) and files.as_bytes(np.ones(1)).tolist() == [255]


def test_an_image_is_scaled_by_its_nearest_pixels():
    image = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(imresize(image, 8, 6)[::2, ::2], image)
    np.testing.assert_array_equal(imresize(image, 2, 3), image[::2])
    assert imresize(image, 2).shape == (2, 2) and imresize(np.zeros((3, 3, 4)), 5).shape == (5, 5, 4)


def test_frames_are_written_and_videos_where_they_can_be(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    manager = VideoManager(tmp_path / "v", framerate=10, automatic_build=False)
    for k in range(3):
        manager.write_frame(np.full((8, 7), k / 2.0))
    assert sorted(p.name for p in (tmp_path / "v" / "frames").iterdir()) == ["000000.png", "000001.png", "000002.png"]
    assert image.open(tmp_path / "v" / "frames" / "000001.png").size == (8, 6)
    manager.make_video(mp4=False)
    assert image.open(manager.get_output_filename(".gif")).n_frames == 3
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.warns(RuntimeWarning, match=r"(?s)it needs ffmpeg on the PATH for mp4\n  the frames are in .*frames"):
        manager.make_video(gif=False)
    manager.clean_frames()
    assert not list((tmp_path / "v" / "frames").iterdir())


def test_an_mp4_is_what_ffmpeg_makes(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kw: calls.append(command) or subprocess.CompletedProcess(command, 0)
    )
    manager = VideoManager(tmp_path, "film", automatic_build=True)
    for _ in range(8):
        manager.write_frame(np.zeros((4, 4)))
    assert [c[-1] for c in calls] == [str(tmp_path / "film.mp4")] * 2 and calls[0][0] == "/bin/ffmpeg" and "4x4" in calls[0]


def test_a_grid_is_written_for_vtk(tmp_path):
    values = np.random.default_rng(4).normal(size=(2, 3, 4))
    write_vtk(values, str(tmp_path / "grid"))
    root = ET.parse(tmp_path / "grid.vtr").getroot()
    data = np.array(root.find(".//CellData/DataArray").text.split(), float)
    np.testing.assert_array_equal(data.reshape(4, 3, 2).T, values)
    assert root.find(".//Piece").get("Extent") == "0 2 0 3 0 4"
