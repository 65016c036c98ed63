//! NCCL over two processes, each with ranks of its own: right numbers, and no rank that waits for ever.
//!
//! A test begins its own program twice, which runs the same test as one process of the job.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;
#[path = "common/nccl.rs"]
mod ranks;

use std::{
    env,
    ffi::c_int,
    fs,
    path::PathBuf,
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use common::*;
use ranks::*;
use simulated_gpu as _;

const AVERAGE: c_int = 4;
const REMOTE_ERROR: u32 = 6;

/// One process of a job.
struct Job {
    process: usize,
    folder: PathBuf,
}

/// Runs `body` in two processes; both must end well.
fn in_two_processes(test: &str, body: impl FnOnce(&Job)) {
    if let (Ok(process), Ok(folder)) = (env::var("NCCL_PROCESS"), env::var("NCCL_FOLDER")) {
        let job = Job { process: process.parse().expect("a number"), folder: folder.into() };
        body(&job);
        job.end();
        return;
    }
    let folder = env::temp_dir().join(format!("nccl-{}-{test}", process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let program = env::current_exe().expect("this program");
    let start = |number: usize| {
        let mut command = Command::new(&program);
        command.args([test, "--exact", "--nocapture"]);
        command.env("NCCL_PROCESS", number.to_string()).env("NCCL_FOLDER", &folder);
        command.spawn().expect("a process")
    };
    let mut started = [0, 1].map(start);
    let limit = Instant::now() + Duration::from_secs(60);
    let ended: Vec<_> = started
        .iter_mut()
        .map(|process| {
            loop {
                if let Some(status) = process.try_wait().expect("a process of this one's") {
                    return Some(status);
                }
                if Instant::now() > limit {
                    process.kill().expect("a process of this one's");
                    return None;
                }
                thread::sleep(Duration::from_millis(5));
            }
        })
        .collect();
    fs::remove_dir_all(&folder).expect("the folder");
    assert!(ended.iter().all(|status| status.is_some_and(|status| status.success())), "{ended:?}");
}

impl Job {
    /// This process has done its part. The first one stays until the other has too: the hub is in it.
    fn end(&self) {
        fs::write(self.folder.join(format!("end-{}", self.process)), "").expect("a file");
        while self.process == 0 && !self.folder.join("end-1").exists() {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What process 0 has said under this name.
    fn told<const N: usize>(&self, name: &str, say: impl FnOnce() -> [u8; N]) -> [u8; N] {
        let (file, unready) = (self.folder.join(name), self.folder.join(format!("{name}.part")));
        if self.process == 0 {
            fs::write(&unready, say()).and_then(|()| fs::rename(&unready, &file)).expect("a file");
        }
        loop {
            match fs::read(&file) {
                Ok(bytes) => return bytes.try_into().expect("as many bytes"),
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// This process's ranks of a communicator over all: two GPUs each.
    fn ranks(&self) -> Vec<Rank> {
        let id = self.told("id", unique_id);
        let mut sides = [0u64; 2];
        ok(group(|| {
            for (gpu, side) in (0..).zip(&mut sides) {
                enter(gpu);
                ok(join(id, 2 * self.process as c_int + gpu, 4, side));
            }
        }));
        (0..).zip(sides).map(|(gpu, side)| Rank::new(2 * self.process + gpu as usize, gpu, side)).collect()
    }
}

fn error_of(rank: &Rank) -> u32 {
    let mut error = 0;
    ok(cu!(ncclCommGetAsyncError(rank.side => u64, &raw mut error => *mut u32)));
    error
}

#[test]
fn each_collective_gives_what_nccl_says() {
    in_two_processes("each_collective_gives_what_nccl_says", |job| {
        let _session = start(&[("gpus", "2")]);
        let ranks = job.ranks();
        let each = |ask: &dyn Fn(&Rank) -> u32, count: usize, wanted: &dyn Fn(usize) -> Vec<f32>| {
            fill_ranks(&ranks, 8);
            ranks.iter().for_each(|rank| ok(ask(rank)));
            ranks.iter().for_each(|rank| assert_eq!(got(rank, count), wanted(rank.number), "rank {}", rank.number));
        };
        let value = |rank: usize, index: usize| (10 * rank + index) as f32;
        let sum = |index| (0..4).map(|rank| value(rank, index)).sum::<f32>();
        each(&|rank| all_reduce(rank, 3), 3, &|_| (0..3).map(sum).collect());
        each(&|rank| all_reduce_of(rank, 3, F32, AVERAGE), 3, &|_| (0..3).map(|index| sum(index) / 4.0).collect());
        each(
            &|rank| {
                cu!(ncclAllGather(
                    rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, rank.side => u64, rank.stream => usize
                ))
            },
            8,
            &|_| (0..4).flat_map(|rank| [value(rank, 0), value(rank, 1)]).collect(),
        );
        each(
            &|rank| {
                cu!(ncclReduceScatter(
                    rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, SUM => c_int, rank.side => u64,
                    rank.stream => usize
                ))
            },
            2,
            &|rank| vec![sum(2 * rank), sum(2 * rank + 1)],
        );
        each(
            &|rank| {
                cu!(ncclAlltoAll(
                    rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, rank.side => u64, rank.stream => usize
                ))
            },
            8,
            &|mine| (0..4).flat_map(|rank| [value(rank, 2 * mine), value(rank, 2 * mine + 1)]).collect(),
        );
        each(
            &|rank| {
                cu!(ncclBroadcast(
                    rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, 3 => c_int, rank.side => u64,
                    rank.stream => usize
                ))
            },
            2,
            &|_| vec![value(3, 0), value(3, 1)],
        );
        // In a ring, each sends before it receives.
        fill_ranks(&ranks, 2);
        ok(group(|| {
            for rank in &ranks {
                ok(send(rank, 2, (rank.number as c_int + 1) % 4));
                ok(receive(rank, 2, (rank.number as c_int + 3) % 4));
            }
        }));
        for rank in &ranks {
            let from = (rank.number + 3) % 4;
            assert_eq!(got(rank, 2), [value(from, 0), value(from, 1)]);
        }
        // In place, and once more after all of that.
        fill_ranks(&ranks, 2);
        let in_place: Vec<_> = ranks.iter().map(|rank| Rank { receive: rank.send, ..*rank }).collect();
        in_place.iter().for_each(|rank| ok(all_reduce(rank, 2)));
        in_place.iter().for_each(|rank| assert_eq!(got(rank, 2), [sum(0), sum(1)]));
        ranks.iter().for_each(|rank| ok(cu!(ncclCommDestroy(rank.side => u64))));
        no_violations();
    });
}

#[test]
fn a_split_makes_communicators_over_both_or_of_one() {
    in_two_processes("a_split_makes_communicators_over_both_or_of_one", |job| {
        let _session = start(&[("gpus", "2")]);
        let ranks = job.ranks();
        // Even and odd ranks, in the other order; then the ranks of each process.
        let colors: [&dyn Fn(usize) -> usize; 2] = [&|rank| rank % 2, &|rank| rank / 2];
        for color in colors {
            let mut sides = [0u64; 2];
            ok(group(|| {
                for (rank, side) in ranks.iter().zip(&mut sides) {
                    ok(cu!(ncclCommSplit(
                        rank.side => u64, color(rank.number) as c_int => c_int, -(rank.number as c_int) => c_int,
                        side => *mut u64, 0 => usize
                    )));
                }
            }));
            fill_ranks(&ranks, 1);
            let parts: Vec<_> = ranks.iter().zip(sides).map(|(rank, side)| Rank { side, ..*rank }).collect();
            for part in &parts {
                ok(cu!(ncclAllGather(
                    part.send => u64, part.receive => u64, 1 => usize, F32 => c_int, part.side => u64, part.stream => usize
                )));
            }
            for part in &parts {
                let members = (0..4).rev().filter(|&rank| color(rank) == color(part.number));
                assert_eq!(got(part, 2), members.map(|rank| 10.0 * rank as f32).collect::<Vec<_>>());
            }
        }
        no_violations();
    });
}

#[test]
fn processes_that_ask_for_other_things_are_told() {
    in_two_processes("processes_that_ask_for_other_things_are_told", |job| {
        let _session = start(&[("gpus", "2")]);
        let ranks = job.ranks();
        fill_ranks(&ranks, 8);
        ranks.iter().for_each(|rank| ok(all_reduce(rank, 2 + job.process)));
        ranks.iter().for_each(|rank| {
            enter(rank.gpu);
            synchronize(rank.stream);
        });
        let [mine, other] = if job.process == 0 { [2, 3] } else { [3, 2] };
        found(&[&format!("is ncclAllReduce of {mine} Float32"), &format!("and ncclAllReduce of {other} Float32")]);
    });
}

#[test]
fn a_process_that_ends_is_not_waited_for() {
    in_two_processes("a_process_that_ends_is_not_waited_for", |job| {
        let _session = start(&[("gpus", "2")]);
        let ranks = job.ranks();
        fill_ranks(&ranks, 2);
        ranks.iter().for_each(|rank| ok(all_reduce(rank, 2)));
        ranks.iter().for_each(|rank| assert_eq!(got(rank, 1), [60.0]));
        if job.process == 1 {
            // One of its ranks calls, but not the other: the process never brings anything.
            ok(all_reduce(&ranks[0], 2));
            job.end();
            process::exit(0);
        }
        ranks.iter().for_each(|rank| ok(all_reduce(rank, 2)));
        thread::sleep(Duration::from_millis(100));
        enter(0);
        // As with NCCL, the streams wait until somebody aborts.
        assert!(!is_done(ranks[0].stream));
        ranks.iter().for_each(|rank| ok(cu!(ncclCommAbort(rank.side => u64))));
        ranks.iter().for_each(|rank| {
            enter(rank.gpu);
            synchronize(rank.stream);
        });
        no_violations();
    });
}

#[test]
fn one_that_aborts_lets_the_others_know() {
    in_two_processes("one_that_aborts_lets_the_others_know", |job| {
        let _session = start(&[("gpus", "2")]);
        let ranks = job.ranks();
        fill_ranks(&ranks, 2);
        if job.process == 1 {
            ranks.iter().for_each(|rank| ok(all_reduce(rank, 2)));
            thread::sleep(Duration::from_millis(100));
            ranks.iter().for_each(|rank| ok(cu!(ncclCommAbort(rank.side => u64))));
            // Process 0 is to learn it from here, not from the end.
            job.told::<1>("heard", || [1]);
            return no_violations();
        }
        thread::sleep(Duration::from_millis(200));
        ranks.iter().for_each(|rank| ok(all_reduce(rank, 2)));
        ranks.iter().for_each(|rank| {
            enter(rank.gpu);
            synchronize(rank.stream);
            assert_eq!(error_of(rank), REMOTE_ERROR);
        });
        job.told("heard", || [1]);
        no_violations();
    });
}
