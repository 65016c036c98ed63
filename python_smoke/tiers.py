"""Which tests are slow: `make test-all` runs them, `make test` does not.

A test is listed here where it takes long and another one that is not listed takes the same way through the arena: with
another strategy, an older engine, a smaller program. Tests of tools beside the plugin are listed too.
"""

from __future__ import annotations

import re

import pytest

#: Names as pytest prints them, without the folder; `*` stands for anything, and a name without parameters for all.
SLOW = (
    # Scripts and tools, whose parts have tests of their own.
    "test_bench.py::test_backends_run_together_in_one_process",
    "test_bench.py::test_the_whole_benchmark_tiny",
    "test_gpu_script.py::test_an_nvidia_smi_that_hangs_costs_a_few_seconds",
    "test_gpu_script.py::test_on_a_simulated_gpu",
    "test_gpu_script.py::test_what_fails_on_the_arena_is_tried_with_one_thing_off_each[wants_platform-platform]",
    "test_jax_suite.py::test_a_file_goes_on_after_crashes_and_stalls",
    "test_jax_suite.py::test_an_environment_without_wheels_is_refused",
    "test_jax_suite.py::test_compare_groups_regressions_by_cause",
    "test_jax_suite.py::test_every_end_of_a_test_is_told_apart",
    "test_jax_suite.py::test_what_is_no_tests_fault_is_a_note",
    "test_jax_suite.py::test_what_was_run_is_told",
    # Libraries on JAX: flax's nnx with optax and orbax stay.
    "test_libraries.py::test_diffrax_solves_and_differentiates",
    "test_libraries.py::test_equinox_gru",
    "test_libraries.py::test_flax_transformer_with_remat_learns",
    "test_libraries.py::test_jax_scipy",
    "test_libraries.py::test_numpyro_nuts_finds_the_posterior",
    "test_libraries.py::test_sparse",
    # GPUs: the older of the two engines.
    "test_gpu.py::test_programs_transfers_and_donation[*-112]",
    "test_gpu_pinned.py::*[112]",
    "test_gpu_pinned.py::*[*-112]",
    "test_gpu_rocm.py::test_arrays_lie_in_the_arena[*-112]",
    # GPUs: the same with other strategies, and programs with much scratch.
    "test_gpu.py::test_arrays_and_scratch_share_one_limit",
    "test_gpu.py::test_arrays_use_the_memory_behind_other_holes_before_they_take_scratch_back",
    "test_gpu.py::test_arrays_wait_for_scratch_that_a_program_under_way_has[preallocate]",
    "test_gpu.py::test_copies_of_what_is_still_written_have_room_within_the_limit[growing]",
    "test_gpu.py::test_copies_of_what_is_still_written_have_room_within_the_limit[platform]",
    "test_gpu.py::test_copies_of_what_is_still_written_have_room_within_the_limit[preallocate]",
    "test_gpu_distributed.py::test_two_processes_are_one_job[preallocate]",
    "test_gpu_distributed.py::test_without_pools_too",
    "test_gpu_no_pools.py::test_arrays_and_scratch_each_have_their_part",
    "test_gpu_pinned.py::test_the_limit_is_an_error_with_the_numbers_and_nothing_is_lost[platform]",
    "test_gpu_pinned.py::test_the_limit_is_an_error_with_the_numbers_and_nothing_is_lost[preallocate]",
    "test_gpu_shared.py::test_a_program_that_the_device_has_no_room_for_is_refused_each_time",
    "test_gpu_shared.py::test_nobody_waits_for_the_gpu_to_catch_up",
    "test_gpu_shared.py::test_scratch_that_grows_is_held_once",
    # The host: the same with other strategies, other numbers of threads, or more devices.
    "test_callback_threads.py::test_on_several_devices",
    "test_callback_threads.py::test_threads_run_programs[1]",
    "test_callback_threads.py::test_under_vmap[broadcast_all]",
    "test_mixed_soak.py::test_some_seconds_of_it",
    "test_odd_surroundings.py::test_as_many_devices_as_there_may_be[growing]",
    "test_partitioners.py::test_shardings_and_numbers_are_those_of_jaxs_own_backend",
    "test_process.py::test_limits_of_the_shell_leave_room_for_arrays[growing-*]",
    "test_process.py::test_a_process_ends_while_threads_run_callbacks[12]",
    "test_scratch.py::*[growing]",
    "test_scratch.py::*[tpu]",
    "test_scratch.py::*[variables1]",
    "test_strategies.py::*[XLA platform]",
    "test_strategies.py::*[ours before XLA's]",
    "test_strategies.py::*[ours preallocate]",
    "test_training.py::test_soak_memory_is_flat_and_nothing_is_left",
)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in name.split("*")) + ("" if "[" in name else r"(\[.*\])?"))


#: The names of all tests that were collected, slow ones too, in the stash of pytest's configuration.
COLLECTED = pytest.StashKey[list[str]]()

PATTERNS = {name: _pattern(name) for name in SLOW}


def is_slow(name: str) -> bool:
    """Whether the test of this name is listed."""
    return any(pattern.fullmatch(name) for pattern in PATTERNS.values())


def stale(names: list[str]) -> list[str]:
    """Entries of the list that none of these tests has."""
    return [entry for entry, pattern in PATTERNS.items() if not any(pattern.fullmatch(name) for name in names)]
