"""``ti.GUI`` and ``ti.ui`` without a screen: pixels of drawings, frames, images as files, input that never comes."""

import numpy as np
import pytest

from qdrun.compiler.lang.compat.windows import session, ui
from qdrun.compiler.lang.compat.windows.drawing import hex_to_rgb, rgb_to_hex
from qdrun.compiler.lang.compat.windows.gui import GUI
from qdrun.compiler.lang.compat.windows.session import FRAMES, FramesOver, Session, begin


@pytest.fixture(autouse=True)
def its_own_session():
    before = session.CURRENT[0]
    yield begin(Session())
    begin(before)


def pixel(window, x, y):
    """The colour of the frame at a place, as 0xRRGGBB."""
    image = window.get_image() if isinstance(window, GUI) else window.get_image_buffer_as_numpy()
    w, h = image.shape[:2]
    return f"{rgb_to_hex(np.round(image[min(int(x * w), w - 1), min(int(y * h), h - 1), :3] * 255) / 255):06x}"


def test_shapes_are_where_they_were_drawn():
    gui = GUI("shapes", res=(200, 100), background_color=0x112233)
    gui.circle((0.25, 0.5), color=0xFF0000, radius=10)
    gui.circles(np.array([[0.5, 0.5], [0.5, 0.5], [0.75, 0.5]]), radius=np.array([10, 3, 5]), color=0x00FF00)
    gui.line((0, 0), (1, 0), radius=2, color=0x0000FF)
    gui.triangle((0.1, 0.7), (0.3, 0.7), (0.2, 0.95), color=0xFFFF00)
    gui.rect((0.6, 0.9), (0.9, 0.7), radius=1, color=0xFF00FF)
    assert pixel(gui, 0.25, 0.5) == "ff0000" and pixel(gui, 0.25 + 9 / 200, 0.5) == "ff0000"
    assert pixel(gui, 0.25 + 12 / 200, 0.5) == "112233"
    assert pixel(gui, 0.5, 0.5) == pixel(gui, 0.75, 0.5) == "00ff00" and pixel(gui, 0.75 + 7 / 200, 0.5) == "112233"
    assert pixel(gui, 0.4, 0.01) == "0000ff" and pixel(gui, 0.4, 0.05) == "112233"
    assert pixel(gui, 0.2, 0.75) == "ffff00" and pixel(gui, 0.11, 0.9) == "112233"
    assert pixel(gui, 0.6, 0.8) == pixel(gui, 0.75, 0.9) == "ff00ff" and pixel(gui, 0.75, 0.8) == "112233"
    gui.show()
    assert gui.drawing.calls == [] and gui.frame == 1
    gui.clear(0xFFFFFF)
    assert pixel(gui, 0.5, 0.5) == "ffffff"


def test_areas_of_shapes():
    gui = GUI("areas", res=400)
    gui.circle((0.5, 0.5), radius=100)
    assert np.count_nonzero(gui.get_image()[..., 0]) == pytest.approx(np.pi * 100**2, rel=2e-3)
    gui.clear()
    gui.triangles(*np.array([[[0.1, 0.1]], [[0.9, 0.2]], [[0.3, 0.8]]]))
    assert np.count_nonzero(gui.get_image()[..., 0]) == pytest.approx(400**2 * 0.5 * (0.8 * 0.7 - 0.1 * 0.2), rel=1e-2)
    gui.clear()
    gui.circles(np.array([[-5.0, 0.5], [0.5, 3.0], [np.nan, 0.5], [0.0, 0.0]]), radius=20)
    assert np.count_nonzero(gui.get_image()[..., 0]) == pytest.approx(np.pi * 20**2 / 4, rel=2e-2)


def test_later_shapes_cover_former_ones_and_colours_may_differ():
    rng = np.random.default_rng(5)
    gui, at = GUI("many", res=64), rng.uniform(0.3, 0.7, (500, 2))
    at[-1] = 0.5
    gui.circles(at, radius=rng.uniform(1, 6, 500), color=np.arange(1, 501))
    assert pixel(gui, 0.5, 0.5) == f"{500:06x}"
    gui.circles(at[:3], radius=1, palette=[0xFF0000, 0x00FF00], palette_indices=[0, 1, 1])
    assert pixel(gui, *at[0]) in ("ff0000", "00ff00") and pixel(gui, *at[2]) == "00ff00"


def test_arrows_grids_and_texts_draw_something():
    gui = GUI("more", res=100)
    gui.arrow((0.1, 0.1), (0.5, 0.0), color=0xFF0000)
    assert pixel(gui, 0.35, 0.1) == "ff0000" and pixel(gui, 0.55, 0.14) == "ff0000"
    gui.clear()
    gui.point_field(np.full((4, 4), 3.0), color=0x00FF00)
    assert pixel(gui, 0.125, 0.125) == pixel(gui, 0.875, 0.875) == "00ff00" and pixel(gui, 0.25, 0.25) == "000000"
    gui.clear()
    gui.arrow_field(np.ones((4, 4, 2)) * 0.1)
    gui.vector_field(np.ones((20, 20, 2)))
    assert gui.get_image()[..., 0].sum() > 50
    gui.clear()
    gui.text("text", (0.2, 0.8), font_size=30, color=0xFFFFFF)
    rows = np.flatnonzero(gui.get_image()[..., 0].sum(0))
    assert 40 < rows.min() and rows.max() <= 80


def test_images_of_all_kinds():
    rng = np.random.default_rng(6)
    gui = GUI("images", res=(8, 6))
    grey = rng.uniform(0, 1, (8, 6)).astype(np.float32)
    for image, want in (
        (grey, np.stack([grey] * 3, -1)),
        (np.stack([grey, 1 - grey], -1), np.stack([grey, 1 - grey, 0 * grey], -1)),
        ((grey * 255).astype(np.uint8), np.stack([np.floor(grey * 255) / 255] * 3, -1)),
        (3 * np.stack([grey] * 4, -1).astype(np.float64), np.minimum(1, 3 * np.stack([grey] * 3, -1))),
    ):
        gui.set_image(image)
        np.testing.assert_allclose(gui.get_image()[..., :3], want, atol=1e-6)
    with pytest.raises(AssertionError, match=r"the image has \(6, 8\) pixels, the window \(8, 6\)"):
        gui.set_image(grey.T)
    with pytest.raises(ValueError, match="1 to 4 channels of reals or unsigned integers"):
        gui.set_image(np.zeros((8, 6), np.int32))
    window = ui.Window("stretched", (16, 12))
    window.get_canvas().set_image(grey)
    np.testing.assert_allclose(window.get_image_buffer_as_numpy()[::2, ::2, 0], grey, atol=1e-6)


def test_a_drawing_keeps_what_the_array_held():
    gui, image = GUI("copy", res=4), np.full((4, 4), 0.5)
    gui.set_image(image)
    image[:] = 0
    assert gui.get_image()[..., 0].tolist() == [[0.5] * 4] * 4


def test_contours_are_coloured():
    gui = GUI("contour", res=(20, 10))
    gui.contour(np.linspace(0, 7, 200).reshape(20, 10), normalize=True)
    first, last = gui.get_image()[0, 0, :3], gui.get_image()[-1, -1, :3]
    assert first[2] > first[1] and last[0] > 0.9 and last[1] > 0.9


@pytest.mark.parametrize("make", [lambda: GUI("gui", 8), lambda: ui.Window("window", (8, 8))])
def test_a_loop_ends_after_the_frames(make):
    for limit in (0, 1, 5):
        begin(Session(limit))
        window, n = make(), 0
        while window.running:
            window.show()
            n += 1
        assert n == limit
        with pytest.raises(FramesOver) as over:
            window.show()
        assert over.value.code == 0
    begin(Session())
    window, n = make(), 0
    while window.running:
        window.show()
        n += 1
    assert n == FRAMES


def test_a_loop_that_does_not_ask_ends_with_its_last_frame():
    begin(Session(3))
    gui, n = GUI("for", 8), 0
    with pytest.raises(FramesOver):
        for _ in range(10):
            n += 1
            gui.show()
    assert n == 3
    gui.running = False
    assert not gui.running


def test_nothing_is_pressed_and_widgets_keep_their_values():
    gui, window = GUI("input", 8), ui.Window("input", (8, 8))
    for each in (gui, window):
        assert not each.get_event(GUI.PRESS) and each.get_events() == [] and not each.is_pressed("a", GUI.SPACE)
        assert each.get_cursor_pos() == (0.0, 0.0) and each.event is None
    assert gui.slider("speed", 2, 5).value == 2 and gui.button("go") == "WidgetButton_go" and not gui.has_key_event()
    assert list(gui.get_events()) == [] and gui.label("n").value == 0
    with window.get_gui().sub_window("box", 0, 0, 1, 1) as w:
        w.text("text")
        assert w.slider_float("a", 0.5, 0, 1) == 0.5 and w.slider_int("b", 3, 0, 9) == 3 and w.checkbox("c", True)
        assert not w.button("d") and w.color_edit_3("e", (1, 0, 0)) == (1, 0, 0)
    assert window.GUI is window.get_gui()
    camera = ui.make_camera()
    camera.position(1, 2, 3)
    camera.track_user_inputs(window, movement_speed=0.1, hold_key=ui.RMB)
    assert camera.curr_position.tolist() == [1, 2, 3]


def test_frames_are_saved_by_the_name_of_the_window(tmp_path):
    image = pytest.importorskip("PIL.Image")
    mine = begin(Session(3, tmp_path / "frames"))
    gui, other = GUI("My window!", (30, 20)), GUI("My window!", 8)
    gui.circle((0.9, 0.9), radius=2, color=0xFF8000)
    gui.show()
    other.show()
    assert sorted(p.name for p in (tmp_path / "frames").iterdir()) == ["My-window-00000.png", "My-window-2-00000.png"]
    saved = np.array(image.open(tmp_path / "frames" / "My-window-00000.png"))
    assert saved.shape == (20, 30, 3) and saved[1, 27].tolist() == [255, 128, 0] and saved[18, 27].tolist() == [0, 0, 0]
    assert mine.saved == 2 and "2 frames shown in My-window, My-window-2; 2 files saved" in mine.lines()[0]


def test_a_program_saves_frames_itself(tmp_path):
    image = pytest.importorskip("PIL.Image")
    gui = GUI("own", (4, 2))
    for name in ("a.png", "a.jpg", "a.bmp"):
        gui.clear(0x00FF00)
        gui.show(str(tmp_path / name))
        shown = np.array(image.open(tmp_path / name).convert("RGB"))
        assert shown.shape == (2, 4, 3) and np.abs(shown.astype(int) - (0, 255, 0)).max() <= 2
    window = ui.Window("own", (4, 2), show_window=False)
    window.get_canvas().set_background_color((1, 0, 0))
    window.save_image(str(tmp_path / "b.png"))
    window.show()
    assert np.array(image.open(tmp_path / "b.png"))[0, 0].tolist() == [255, 0, 0]
    assert pixel(window, 0, 0) == "ff0000"  # of the frame that was shown last


def test_colours_are_converted():
    assert rgb_to_hex((1.0, 0.5, 0.0)) == 0xFF7F00 and hex_to_rgb(0xFF8000) == (1.0, 128 / 255, 0.0)
    assert rgb_to_hex(np.array([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0]])).tolist() == [0x0000FF, 0xFFFF00]


def test_a_canvas_draws_in_shares_of_its_height():
    window = ui.Window("canvas", (200, 100))
    canvas = window.get_canvas()
    canvas.circles(np.array([[0.5, 0.5, 0.0]], np.float32), radius=0.1, color=(0, 0, 1))
    assert pixel(window, 0.5 + 0.045, 0.5) == pixel(window, 0.5, 0.59) == "0000ff" and pixel(window, 0.56, 0.5) == "000000"
    canvas.lines(np.array([[0.0, 0.9], [1.0, 0.9]]), width=0.04, color=(1, 1, 0))
    assert pixel(window, 0.3, 0.9) == "ffff00" and pixel(window, 0.3, 0.95) == "000000"
    corners = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.2], [0.9, 0.9]])
    canvas.triangles(corners, indices=np.array([0, 1, 2]), per_vertex_color=np.eye(4)[:, :3])
    near = window.get_image_buffer_as_numpy()[1, 1, :3]
    assert near[0] > 0.8 and near.sum() == pytest.approx(1, abs=1e-5)
    canvas.vector_field(np.ones((10, 10, 2)), color=(0, 1, 0))
    assert pixel(window, 0.02, 0.02) != "000000" and window.get_window_shape() == (200, 100)
