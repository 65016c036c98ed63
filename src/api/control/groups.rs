//! Groups of processes that share devices, for C callers.

use serde_json::{Value, json};

use crate::{
    api::text::text_functions,
    error::Result,
    group::{self, MemberInfo, State},
    runtime::device_memory::GroupPart,
    units::Bytes,
};

text_functions! {
    /// The groups of this user, of which this process need not be a member, as JSON: an array with, for each group, its
    /// name and its devices; for each device the limit and the members, as in the counters of a device that is shared.
    /// A group that cannot be read has `error` in place of the devices. O(groups), and the members of each.
    pub fn pjrt_arena_groups() -> String {
        match groups() {
            Ok(groups) => Value::from(groups).to_string(),
            Err(error) => json!({ "error": error.message }).to_string(),
        }
    }
}

fn groups() -> Result<Vec<Value>> {
    let told = |name: String| match group::look(&name) {
        Ok(overview) => {
            let device = |(limit, members): &(Bytes, Vec<MemberInfo>)| {
                let members: Vec<_> = members.iter().map(member).collect();
                json!({ "limit_bytes": limit.get(), "members": members })
            };
            json!({ "name": name, "devices": overview.devices.iter().map(device).collect::<Vec<_>>() })
        }
        Err(error) => json!({ "name": name, "error": error.message }),
    };
    Ok(group::names()?.into_iter().map(told).collect())
}

/// A device's part in a group, for the counters: who is in it, and what this process has asked for and given.
pub fn of_part(part: &GroupPart) -> Value {
    let members = match part.members() {
        Ok(members) => json!(members.iter().map(member).collect::<Vec<_>>()),
        Err(error) => json!({ "error": error.message }),
    };
    json!({
        "name": part.group().name(),
        "limit_bytes": part.limit().get(),
        "held_bytes": part.held().get(),
        "asked": part.asked.arrays(),
        "asked_bytes": part.asked.bytes().get(),
        "asked_seconds": part.asked.took().as_secs_f64(),
        "given": part.given.arrays(),
        "given_bytes": part.given.bytes().get(),
        "given_seconds": part.given.took().as_secs_f64(),
        "members": members,
    })
}

fn member(member: &MemberInfo) -> Value {
    let MemberInfo {
        process,
        is_self,
        is_alive,
        state,
        held,
        used,
        idle,
        min,
        weight,
        total_asked,
        total_given,
        asked,
    } = member;
    json!({
        "pid": process.pid,
        "command": process.command,
        "state": match (is_alive, state) {
            (false, _) => "dead",
            (true, State::Running) => "running",
            (true, State::Stopped) => "stopped",
            (true, State::Unseen) => "not visible",
        },
        "is_self": is_self,
        "held_bytes": held.get(),
        "used_bytes": used.get(),
        "idle_bytes": idle.get(),
        "min_bytes": min.get(),
        "weight": weight,
        "total_asked_bytes": total_asked.get(),
        "total_given_bytes": total_given.get(),
        "asks_bytes": asked.map_or(0, |(bytes, _)| bytes.get()),
        "asks_seconds": asked.map_or(0.0, |(_, age)| age.as_secs_f64()),
    })
}
