"""What a machine has: rows of devices, bytes of RAM in containers, AMD's numbers."""

import subprocess
import sys

import pytest

from qdrun.compiler.runtime.inventory import BackendLine
from qdrun.runner.ledger import inventory, local, memory, pools_and_devices
from qdrun.runner.ledger.amd import AmdCard, cards, visible
from qdrun.runner.ledger.amd import memory as amd_memory

MIB, GIB = 1 << 20, 1 << 30
UUID = "GPU-0123abcd-0000-1111-2222-333344445555"
H200 = f"NVIDIA H200, sm_90, 139.8 GiB, CUDA 12.8, {UUID}, 0000:3b:00.0"


@pytest.fixture
def machine(monkeypatch):
    rows = [
        BackendLine("cpu", True, True, "znver3, 16 threads, 64.0 GiB", 16, 64 * GIB, model="znver3"),
        BackendLine("cuda", True, True, H200, 270336, 140 * GIB, 1, UUID, "0000:3b:00.0", "NVIDIA H200", "CUDA 12.8"),
        BackendLine("vulkan", False, False, "no such device on this machine"),
    ]
    monkeypatch.setattr(inventory, "backends", lambda: rows)
    monkeypatch.setattr(memory, "nvidia", lambda: {UUID.lower(): memory.Card(140 * GIB, 100 * GIB, "570.1")})
    monkeypatch.setattr(memory, "host", lambda: (64 * GIB, 60 * GIB))


def test_rows_say_what_a_device_is_and_why_one_is_absent(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6")
    host, card, absent = local(threads=3, lanes=8)
    assert (host.id, host.kind, host.pool, host.lanes, host.threads) == ("cpu", "cpu/znver3/3", "ram", 5, 3)
    assert (host.capacity, host.foreign) == (64 * GIB - 64 * GIB // 20, 4 * GIB)
    assert (card.id, card.kind, card.pool, card.lanes) == ("cuda:1", "cuda/NVIDIA-H200/270336", UUID, 8)
    assert (card.pci, card.driver, card.ray_id, card.resource) == ("0000:3b:00.0", "570.1", "6", "GPU")
    assert card.capacity == 140 * GIB - 7 * GIB and card.foreign == 40 * GIB
    assert (absent.usable, absent.why) == (False, "no such device on this machine")
    assert local(threads=3)[0].lanes == 5 and local(threads=99)[0].lanes == 1
    assert local(node="0123456789abcdef")[1].id == f"cuda:{UUID}"


def test_the_packer_gets_what_is_left(machine):
    pools, devices = pools_and_devices(local())
    assert [pool.id for pool in pools] == ["ram", UUID] == [device.pool for device in devices]
    assert pools[1].capacity == 93 * GIB and devices[1].process_bytes == 576 * MIB
    small = inventory.Found("d", "", "cpu", total=300 * MIB, pool="p", kind="k")
    assert small.capacity == 0  # less than what is left alone


def test_a_card_that_two_backends_see_is_one_pool_by_its_uuid_or_its_address(machine, monkeypatch):
    cards = {"cuda": (UUID, "0000:3b:00.0"), "amdgpu": ("GPU-0000000000001234", "0000:C7:00.0")}
    seen = [(name, *where) for name, where in cards.items()]
    seen += [
        ("vulkan", UUID, ""),
        ("vulkan", "GPU-00000000-c700-0000-0000-000000000000", "0000:c7:00.0"),
        ("metal", "GPU-5", ""),
    ]
    rows = [BackendLine("cpu", True, True, "", 16, 64 * GIB, model="znver3")]
    rows += [
        BackendLine(name, True, True, name, 1000, 140 * GIB, k, uuid, pci, "card") for k, (name, uuid, pci) in enumerate(seen)
    ]
    monkeypatch.setattr(inventory, "backends", lambda: rows)
    monkeypatch.setattr(inventory.amd, "cards", list)
    host, cuda, amd, first, second, metal = local()
    assert cuda.pool == first.pool == UUID and amd.pool == second.pool == "GPU-0000000000001234" and metal.pool == "GPU-5"
    assert [row.resource for row in (first, metal)] == ["qdrun_vulkan", "qdrun_metal"]
    assert first.foreign == cuda.foreign == 40 * GIB
    pools, devices = pools_and_devices([host, cuda, amd, first, second, metal])
    assert [pool.id for pool in pools] == ["ram", cuda.pool, amd.pool, "GPU-5"] and len(devices) == 6
    assert pools[1].capacity == 93 * GIB, "what is left of the card, once"


def test_parts_of_one_card_have_memory_of_their_own(machine, monkeypatch):
    parts = [BackendLine("cuda", True, True, "", 1000, 40 * GIB, k, f"MIG-{k}", "0000:3b:00.0", "H100 MIG") for k in range(2)]
    both = BackendLine("vulkan", True, True, "", 1000, 80 * GIB, 0, UUID, "0000:3b:00.0", "H100")
    monkeypatch.setattr(inventory, "backends", lambda: [*parts, both])
    assert [row.pool for row in local()] == ["MIG-0", "MIG-1", UUID]


def test_each_lane_of_a_cpu_is_a_process_and_all_of_a_card_are_one(machine):
    host, card, _ = local(lanes=8)
    assert (host.charge(), host.charge(3), card.charge(), card.charge(2)) == (
        8 * 320 * MIB,
        3 * 320 * MIB,
        576 * MIB,
        576 * MIB,
    )
    assert [device.process_bytes for device in pools_and_devices([host, card])[1]] == [8 * 320 * MIB, 576 * MIB]


@pytest.mark.parametrize(("free", "lanes"), [(60, 16), (8, 7), (5, 2), (4, 1), (0, 1)])
def test_processes_of_a_cpu_take_at_most_half_of_the_memory_that_is_left(machine, monkeypatch, free, lanes):
    monkeypatch.setattr(memory, "host", lambda: (64 * GIB, free * GIB))
    host = local()[0]
    left = max(0, host.capacity - host.foreign)
    assert host.lanes == lanes
    if lanes < 16:
        assert host.charge(lanes + 1) > left // 2
        assert host.charge() <= left // 2 or lanes == 1
    assert local(lanes=2)[0].lanes == min(2, lanes)


def test_a_node_with_fewer_cores_than_a_trial_has_threads_gives_it_all(machine):
    host = local(threads=99)[0]
    assert (host.threads, host.lanes, host.kind) == (16, 1, "cpu/znver3/16")


def test_amd_cards_have_the_lanes_that_the_config_asks_for(machine, monkeypatch):
    row = BackendLine("amdgpu", False, False, "not built", 1000, 0)
    monkeypatch.setattr(inventory, "backends", lambda: [row])
    monkeypatch.setattr(inventory.amd, "cards", lambda: [AmdCard(0, "GPU-1", "", "MI300", GIB)])
    monkeypatch.setattr(inventory.amd, "visible", lambda found: found)
    assert [local(lanes=count)[0].lanes for count in (None, 7)] == [inventory.LANES, 7]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (32 * GIB, 20 * GIB)),
        ({"memory.max": "max"}, (32 * GIB, 20 * GIB)),
        (
            {"memory.max": f"{8 * GIB}", "memory.current": f"{3 * GIB}", "memory.stat": f"anon 5\ninactive_file {GIB}"},
            (8 * GIB, 6 * GIB),
        ),
        ({"memory.max": f"{30 * GIB}", "memory.current": f"{GIB}"}, (30 * GIB, 20 * GIB)),
        ({"memory/memory.limit_in_bytes": f"{4 * GIB}", "memory/memory.usage_in_bytes": f"{5 * GIB}"}, (4 * GIB, 0)),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, (32 * GIB, 20 * GIB)),
    ],
    ids=["no group", "no limit", "version 2", "others hold more", "version 1, full", "version 1, no limit"],
)
def test_a_container_has_the_bytes_of_its_limit(tmp_path, files, expected):
    (tmp_path / "meminfo").write_text(f"MemTotal: {32 << 20} kB\nMemFree: 5 kB\nMemAvailable: {20 << 20} kB\n")
    for name, text in files.items():
        (tmp_path / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cg" / name).write_text(text)
    assert memory.host(tmp_path, tmp_path / "cg") == expected


@pytest.mark.parametrize(
    ("version", "limits", "expected"),
    [
        (2, {"": None, "user": 12, "user/run": None}, (12, 9)),
        (2, {"user": 12, "user/run": 6}, (6, 3)),
        (2, {"user": 6, "user/run": 12}, (6, 3)),
        (2, {"": 8, "user/run": 10}, (8, 5)),
        (1, {"user": 12, "user/run": 6}, (6, 3)),
        (1, {"": 7}, (7, 4)),
    ],
)
def test_the_smallest_limit_of_all_control_groups_around_this_process_counts(tmp_path, version, limits, expected):
    """Each of them holds 3 GiB; the machine has 32, of which 20 are free."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal: {32 * GIB >> 10} kB\nMemAvailable: {20 * GIB >> 10} kB\n")
    (tmp_path / "self/cgroup").write_text(
        "0::/user/run\n" if version == 2 else "4:cpu,memory:/user/run\n1:pids:/other\n0::/x\n"
    )
    root = tmp_path / "cg" / ("memory" if version == 1 else "")
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for path, limit in limits.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / names[0]).write_text("max" if limit is None else str(limit * GIB))
        (root / path / names[1]).write_text(str(3 * GIB))
    total, free = memory.host(tmp_path, tmp_path / "cg")
    assert (total / GIB, free / GIB) == expected


def test_amd_cards_by_the_kernels_list(tmp_path):
    for name, text in {
        "0/properties": "simd_count 0\ncpu_cores_count 64\n",
        "1/properties": "simd_count 440\nunique_id 4660\nlocation_id 50944\ndomain 0\ngfx_target_version 90402\n",
        "1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {64 * GIB}\n",
        "10/properties": "simd_count 256\ndrm_render_minor 129\nlocation_id 1280\ndomain 1\ngfx_target_version 110000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    drm = tmp_path / "drm" / "renderD129" / "device"
    drm.mkdir(parents=True)
    (drm / "mem_info_vram_total").write_text(f"{24 * GIB}\n")
    (drm / "mem_info_vram_used").write_text(f"{3 * GIB}\n")
    found = cards(tmp_path, tmp_path / "drm")
    assert found == [
        AmdCard(0, "GPU-0000000000001234", "0000:c7:00.0", "gfx942", 64 * GIB),
        AmdCard(1, "", "0001:05:00.0", "gfx1100", 0, 21 * GIB),
    ]
    assert cards(tmp_path / "nothing") == []
    (tmp_path / "version").write_text("6.12.12\n")
    assert amd_memory(found, tmp_path / "version") == {"gpu-0001:05:00.0": memory.Card(0, 21 * GIB, "6.12.12")}


AMD = "GPU-0000000000001234"
MI300 = f"AMD Instinct MI300X, gfx942, 192.0 GiB, HIP 7.15, {AMD}, 0000:c7:00.0"


@pytest.fixture
def amd_machine(monkeypatch):
    """Two cards, one of which no code is made for; the kernel knows what the first one has free."""
    rows = [
        BackendLine("cpu", True, True, "znver3, 16 threads, 64.0 GiB", 16, 64 * GIB, model="znver3"),
        BackendLine("amdgpu", True, True, MI300, 622_592, 192 * GIB, 0, AMD, "0000:c7:00.0", "AMD Instinct MI300X", "HIP 7.15"),
        BackendLine("amdgpu", False, True, "old cannot be used", 1000, GIB, 1, "GPU-0000000000005678"),
    ]
    monkeypatch.setattr(inventory, "backends", lambda: rows)
    monkeypatch.setattr(memory, "nvidia", dict)
    monkeypatch.setattr(memory, "host", lambda: (64 * GIB, 60 * GIB))
    monkeypatch.setattr(inventory.amd, "cards", lambda: [AmdCard(0, AMD, "0000:c7:00.0", "gfx942", 192 * GIB, 190 * GIB)])
    return rows


def test_an_amd_card_is_a_device_with_a_pool_as_nvidias_are(amd_machine, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", f"3, {AMD}")
    _, card, old = local(lanes=8)
    assert (card.id, card.kind, card.pool, card.lanes) == ("amdgpu:0", "amdgpu/AMD-Instinct-MI300X/622592", AMD, 8)
    assert (card.uuid, card.pci, card.driver, card.ray_id, card.resource) == (AMD, "0000:c7:00.0", "HIP 7.15", "3", "GPU")
    assert card.capacity == 192 * GIB - 192 * GIB // 20 and card.foreign == 2 * GIB
    assert (old.id, old.usable, old.why) == ("amdgpu:1", False, "old cannot be used")
    pools, devices = pools_and_devices(local())
    assert [(d.pool, d.lanes) for d in devices][1:] == [(AMD, inventory.LANES)] and pools[1].capacity == card.capacity - 2 * GIB
    assert local(node="0123456789abcdef")[1].id == f"amdgpu:{AMD}"


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-2,0"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": "1,9,0"}, [1]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amd_numbers_of_a_process(environ, numbers):
    found = [AmdCard(k, f"GPU-{k}", "", "", 0) for k in range(4)]
    assert [card.number for card in visible(found, environ)] == numbers


def test_this_machine_without_ray():
    code = "import sys; from qdrun.runner.ledger import local; rows = local(); print('ray' in sys.modules, rows[0].backend)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "cpu"]
    row = local()[0]
    assert row.usable and row.total >= row.capacity > 0 and row.lanes >= 1 and row.free is not None
