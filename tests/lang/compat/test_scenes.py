"""Scenes of ``ti.ui``: projection beside a closed form, depth, light, clipping, the arrays that are saved."""

import numpy as np
import pytest

from qdrun.compiler.lang.compat.windows import session, ui
from qdrun.compiler.lang.compat.windows.session import Session, begin

RES = (160, 120)


@pytest.fixture
def window():
    before = session.CURRENT[0]
    begin(Session())
    yield ui.Window("scene", RES)
    begin(before)


def scene_at(position, lookat=(0, 0, 0), fov=60.0):
    scene, camera = ui.Scene(), ui.Camera()
    camera.position(*position)
    camera.lookat(*lookat)
    camera.up(0, 1, 0)
    camera.fov(fov)
    scene.set_camera(camera)
    scene.ambient_light((1, 1, 1))
    return scene, camera


def test_particles_are_where_the_camera_sees_them(window):
    rng = np.random.default_rng(1)
    scene, camera = scene_at((0.3, 0.4, 3.0))
    at = rng.uniform(-1, 1, (20, 3))
    scene.particles(at, radius=0.02, per_vertex_color=np.concatenate([at * 0 + 1, np.ones((20, 1))], 1))
    window.get_canvas().scene(scene)
    image, depth = window.get_image_buffer_as_numpy()[..., 0], window.get_depth_buffer_as_numpy()
    for point in at:
        # the view from first principles, with no matrix of the module
        front = np.array([-0.3, -0.4, -3.0]) / np.linalg.norm([0.3, 0.4, 3.0])
        side = np.cross(front, [0, 1, 0]) / np.linalg.norm(np.cross(front, [0, 1, 0]))
        d = point - (0.3, 0.4, 3.0)
        far = d @ front
        x, y = d @ side / far / np.tan(np.radians(30)), d @ np.cross(side, front) / far / np.tan(np.radians(30))
        column, row = int((x / (4 / 3) + 1) / 2 * RES[0]), int((y + 1) / 2 * RES[1])
        if 0 <= column < RES[0] and 0 <= row < RES[1]:
            assert image[column, row] == 1
            near, end = 0.1, 1000.0
            assert depth[column, row] >= near * (end - far) / (far * (end - near)) * 0.99
    assert camera.get_view_matrix().shape == (4, 4) and depth[0, 0] == 0


def test_the_nearer_one_covers_the_other_in_any_order(window):
    for order in (1, -1):
        scene, _ = scene_at((0, 0, 5))
        for z, color in [(0.0, (1, 0, 0)), (1.0, (0, 1, 0))][::order]:
            scene.particles(np.array([[0, 0, z]]), radius=0.5, color=color)
        window.get_canvas().scene(scene)
        assert window.get_image_buffer_as_numpy()[80, 60, :3].tolist() == [0, 1, 0]
        window.show()


def test_a_mesh_is_lit_by_lambert(window):
    corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], float)
    scene, _ = scene_at((0, 0, 4))
    scene.ambient_light((0.1, 0.1, 0.1))
    scene.point_light((0, 3, 4), (0.5, 0.5, 0.5))
    scene.mesh(corners, indices=np.array([0, 1, 2, 0, 2, 3]), color=(1, 0.5, 0))
    window.get_canvas().scene(scene)
    shown = window.get_image_buffer_as_numpy()[80, 60, :3]
    point = np.array([(80.5 / 80 - 1) * 4 / 3, 60.5 / 60 - 1, 0]) * 4 * np.tan(np.radians(30))
    way = np.array([0, 3, 4]) - point
    np.testing.assert_allclose(shown, (0.1 + 0.5 * way[2] / np.linalg.norm(way)) * np.array([1, 0.5, 0]), atol=1e-6)
    depth = window.get_depth_buffer_as_numpy()[80, 60]
    np.testing.assert_allclose(depth, 0.1 * (1000 - 4) / (4 * (1000 - 0.1)), rtol=1e-5)


@pytest.mark.parametrize("show_wireframe", [False, True])
def test_instances_are_moved(window, show_wireframe):
    scene, _ = scene_at((0, 0, 5))
    moves = np.tile(np.eye(4), (2, 1, 1))
    moves[:, 0, 3] = -1, 1
    corners = np.array([[-0.3, -0.3, 0], [0.3, -0.3, 0], [0, 0.3, 0]])
    scene.mesh_instance(corners, transforms=moves, color=(1, 1, 1), show_wireframe=show_wireframe)
    window.get_canvas().scene(scene)
    columns = window.get_image_buffer_as_numpy()[..., 0].sum(1) > 0
    assert columns[:75].any() and columns[85:].any() and not columns[75:85].any()


def test_what_is_behind_the_camera_is_cut_off(window):
    scene, _ = scene_at((0, 1, 0), lookat=(0, 1, -1))
    floor = np.array([[-50, 0, -50], [50, 0, -50], [50, 0, 50], [-50, 0, 50]], float)
    scene.mesh(floor, indices=np.array([0, 1, 2, 0, 2, 3]), color=(1, 1, 1))
    scene.lines(np.array([[0, 1.5, -5], [0, 1.5, 5]], float), width=2, color=(1, 0, 0))
    scene.particles(np.array([[0, 1, 2.0]]), radius=0.5, color=(0, 0, 1))
    window.get_canvas().scene(scene)
    image = window.get_image_buffer_as_numpy()
    assert (image[:, :50, 0] == 1).all() and (image[10:70, 62:, :3] == 0).all() and (image[..., 2] <= image[..., 0]).all()
    assert image[80, 80:115, 0].max() == 1 and image[80, 80:115, 1].max() == 0


def test_an_orthogonal_camera(window):
    scene, camera = scene_at((0, 0, 5))
    camera.projection_mode(ui.ProjectionMode.Orthogonal)
    for name, value in (("left", -2), ("right", 2), ("bottom", -2), ("top", 2)):
        getattr(camera, name)(value)
    scene.particles(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, -3.0]]), radius=0.1, color=(1, 1, 1))
    window.get_canvas().scene(scene)
    x, y = np.nonzero(window.get_image_buffer_as_numpy()[..., 0])
    assert abs(x.mean() - 119.5) < 1 and abs(y.mean() - 89.5) < 1


def test_the_arrays_of_a_scene_are_saved(tmp_path):
    before = session.CURRENT[0]
    try:
        begin(Session(1, tmp_path))
        window = ui.Window("kept", RES)
        scene, _ = scene_at((0, 0, 5))
        at = np.random.default_rng(3).uniform(-1, 1, (7, 3))
        scene.particles(at, radius=0.1, color=(1, 0, 0), index_offset=2, index_count=3)
        scene.lines(at, width=1, vertex_count=4)
        window.get_canvas().scene(scene)
        with pytest.raises(SystemExit):
            window.show()
        saved = np.load(tmp_path / "kept-00000.npz")
        np.testing.assert_array_equal(saved["0_scene_0_particles_centers"], at[2:5])
        assert saved["0_scene_1_lines_indices"].tolist() == [[0, 1], [2, 3]] and saved["0_scene_camera_position"].tolist() == [
            0,
            0,
            5,
        ]
        assert (tmp_path / "kept-00000.png").exists()
    finally:
        begin(before)
