//! Where log lines go: standard error, one line each, with our name in front of it.
//!
//! ```text
//! pjrt-arena[4711] WARN: the environment variable PJRT_ARENA_LIMT means nothing to pjrt-arena; did you mean ...
//! ```
//!
//! The filter is `PJRT_ARENA_LOG`, not `RUST_LOG`, which belongs to the program around us.

use std::io::{self, Write};

use env_logger::{Builder, Target};
use log::Record;

use crate::config::LogFilter;

/// Starts logging with `filter`. A process has one logger: where there is one already (an earlier client's, or the host
/// program's own in a Rust program), nothing changes and `false` comes back.
pub fn init(filter: &LogFilter) -> bool {
    Builder::new().parse_filters(filter.as_str()).target(Target::Stderr).format(write_line).try_init().is_ok()
}

/// Writes one record. The process id is asked for each time, because a process may have forked since the start.
fn write_line(out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
    writeln!(out, "pjrt-arena[{}] {}: {}", std::process::id(), record.level(), record.args())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_us_the_process_and_the_level() {
        let mut out = Vec::new();
        let record = Record::builder().args(format_args!("limit=75%")).level(log::Level::Warn).build();
        write_line(&mut out, &record).unwrap();
        let expected = format!("pjrt-arena[{}] WARN: limit=75%\n", std::process::id());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_second_start_changes_nothing() {
        init(&LogFilter::default());
        assert!(!init(&LogFilter::default()));
        assert_eq!(log::max_level(), log::LevelFilter::Warn);
    }
}
