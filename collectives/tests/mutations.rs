//! Plans with a change in one place are refused, by name.
#![allow(clippy::unwrap_used, clippy::panic)]

use symrail_collectives::build::{Shape, all_reduce, moves};
use symrail_collectives::plan::schema::{ChannelType, Document, Op};
use symrail_collectives::plan::{Check, Plan};

fn plans() -> Vec<Document> {
    let (three, hosts) = (Shape::one_host(3, 1), Shape { hosts: vec![0, 0, 1, 1], blocks: 1 });
    vec![
        all_reduce::two_phase(&three),
        all_reduce::direct(&three),
        all_reduce::by_puts(&hosts),
        all_reduce::hierarchical(&hosts).unwrap(),
        moves::all_gather(&hosts),
        moves::reduce_scatter(&hosts),
        moves::all_to_all(&three),
        moves::broadcast(&three, 1),
    ]
}

/// A change of an operation, if it applies to it.
type Change = (&'static str, fn(&mut Op) -> bool);

const CHANGES: [Change; 12] = [
    ("another first chunk read", |op| change(op.src_buff.first_mut(), |chunks| chunks.index ^= 1)),
    ("another last chunk read", |op| change(op.src_buff.last_mut(), |chunks| chunks.index += 1)),
    ("another first chunk written", |op| change(op.dst_buff.first_mut(), |chunks| chunks.index ^= 1)),
    ("another last chunk written", |op| change(op.dst_buff.last_mut(), |chunks| chunks.index += 1)),
    ("more chunks", |op| change(op.src_buff.last_mut(), |chunks| chunks.size += 1)),
    ("no chunks", |op| change(op.dst_buff.last_mut(), |chunks| chunks.size = 0)),
    ("another remote buffer", |op| {
        change(op.dst_buff.iter_mut().rev().find_map(|chunks| chunks.buffer_id.as_mut()), |id| *id += 1)
    }),
    ("another channel", |op| change(op.channel_ids.last_mut(), |id| *id += 1)),
    ("a channel less", |op| op.channel_ids.pop().is_some()),
    ("a source less", |op| op.src_buff.pop().is_some()),
    ("another type of channel", |op| {
        change(op.channel_type.as_mut(), |ty| {
            *ty = if *ty == ChannelType::Port { ChannelType::Memory } else { ChannelType::Port };
        })
    }),
    ("an operation less", |op| {
        op.name = "nop".into();
        true
    }),
];

fn change<T>(what: Option<&mut T>, how: impl FnOnce(&mut T)) -> bool {
    what.map(how).is_some()
}

#[test]
fn every_change_is_refused_by_name() {
    let (mut refused, mut accepted) = (0, Vec::new());
    for document in plans() {
        Plan::new(&document, Check::Result).unwrap();
        for rank in 0..document.gpus.len() {
            for op in 0..document.gpus[rank].threadblocks[0].ops.len() {
                for (name, change) in CHANGES {
                    let mut changed = document.clone();
                    if !change(&mut changed.gpus[rank].threadblocks[0].ops[op]) {
                        continue;
                    }
                    match Plan::new(&changed, Check::Result) {
                        Err(error) => {
                            refused += 1;
                            let error = error.to_string();
                            assert!(error.starts_with(&format!("plan {}, rank ", document.name)), "{error}");
                        }
                        Ok(_) => accepted.push(format!("{} rank {rank} operation {op}: {name}", document.name)),
                    }
                }
            }
        }
    }
    assert!(refused >= 100, "{refused}");
    println!("{refused} changes refused");
    assert!(accepted.is_empty(), "{} of {}: {accepted:#?}", accepted.len(), refused + accepted.len());
}
