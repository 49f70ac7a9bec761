//! Which of several plans is chosen, and why the others are not; the errors of files that are no plans.
#![allow(clippy::unwrap_used)]

use symrail_collectives::Selection;
use symrail_collectives::build::{Shape, all_reduce, moves};
use symrail_collectives::plan::registry::{Registry, Wanted};
use symrail_collectives::plan::schema::{ChannelType, Document, Op};
use symrail_collectives::plan::{Check, Collective, Plan};

fn plan(document: &Document) -> Plan {
    Plan::new(document, Check::Result).unwrap()
}

#[test]
fn the_first_plan_that_suits_is_taken() {
    let (two, hosts) = (Shape::one_host(2, 1), Shape { hosts: vec![0, 1], blocks: 1 });
    let small = Document { max_message_size: 1024, ..all_reduce::one_shot(&two) };
    let in_place = Document { inplace: true, name: "in place".into(), ..all_reduce::direct(&two) };
    let mut registry = Registry::default();
    for document in
        [&moves::all_gather(&two), &small, &in_place, &all_reduce::direct(&two), &all_reduce::by_puts(&hosts)]
    {
        registry.add(plan(document));
    }
    let chosen = |message, hosts: &[u32], in_place| {
        let wanted = Wanted { collective: Collective::AllReduce, message, hosts, in_place, root: 0 };
        let explained = registry.explain(&wanted);
        let name = registry.select(&wanted).and_then(|place| Some(registry.get(place)?.name().to_owned()));
        let marked = explained.iter().find_map(|line| line.strip_suffix(": chosen"));
        assert_eq!(marked, name.as_deref(), "{explained:?}");
        (name.unwrap_or_default(), explained.join("\n"))
    };
    assert_eq!(chosen(1024, &[0, 0], false).0, "all-reduce-one-shot-2x1");
    assert_eq!(chosen(1025, &[0, 0], false).0, "all-reduce-direct-2x1");
    assert_eq!(chosen(8, &[0, 0], true).0, "in place");
    let (name, why) = chosen(8, &[0, 1], false);
    assert_eq!(name, "all-reduce-by-puts-2x1");
    assert!(why.contains("its ranks 0 and 1 use memory channels and are on two hosts"), "{why}");
    assert!(why.contains("it is for all_gather"), "{why}");
    assert_eq!(chosen(8, &[0, 0, 0], false).0, "", "there are plans for two PEs only");
}

#[test]
fn plans_of_more_blocks_than_a_device_runs_at_once_are_refused() {
    let four = plan(&all_reduce::direct(&Shape::one_host(2, 4)));
    four.check_blocks(4).unwrap();
    let why = four.check_blocks(3).unwrap_err().to_string();
    let expected = "plan all-reduce-direct-2x4, rank 0: 4 blocks of 1024 threads, of which this device runs 3 at once";
    assert!(why.starts_with(expected), "{why}");
}

#[test]
fn broadcasts_and_reductions_have_the_root_of_the_call() {
    let two = Shape::one_host(2, 1);
    for (collective, of) in [
        (Collective::Broadcast, moves::broadcast as fn(&Shape, usize) -> Document),
        (Collective::Reduce, moves::reduce),
    ] {
        let mut registry = Registry::default();
        // Nothing is known of a plan whose result is not checked.
        registry.add(Plan::new(&of(&two, 0), Check::Ends).unwrap());
        (0..2).for_each(|root| registry.add(plan(&of(&two, root))));
        for root in 0..2 {
            let wanted = Wanted { collective: collective.clone(), message: 8, hosts: &[0, 0], in_place: false, root };
            assert_eq!(registry.select(&wanted), Some(1 + root as usize), "{collective:?}");
            let why = registry.explain(&wanted).join("\n");
            assert!(
                why.contains("its root is unknown") && why.contains(&format!("its root is rank {}", 1 - root)),
                "{why}"
            );
        }
    }
}

#[test]
fn races_and_endless_waits_are_told() {
    let refused = |document: &Document| Plan::new(document, Check::Result).unwrap_err().to_string();
    // Rank 0 does not signal any more. Either of the waits for it may be reported first.
    let mut document = moves::reduce_scatter(&Shape::one_host(2, 1));
    let ops = &mut document.gpus[0].threadblocks[0].ops;
    ops.retain(|op| op.name != "signal");
    assert!(refused(&document).contains("wait waits for ever: rank "), "{}", refused(&document));
    // Both ranks store their output's chunk 0.
    let mut document = moves::all_gather(&Shape::one_host(2, 1));
    document.gpus[1].threadblocks[0].ops.iter_mut().for_each(|op| {
        op.dst_buff.iter_mut().for_each(|chunks| chunks.index = 0);
    });
    let error = refused(&document);
    assert!(error.contains("races with block 0 of rank"), "{error}");
    Plan::new(&document, Check::Ends).unwrap();
}

#[test]
fn files_that_are_no_plans_are_named() {
    let error = Plan::load("/nowhere/plan.json", Check::Result).unwrap_err().to_string();
    assert!(error.contains("/nowhere/plan.json cannot be read"), "{error}");
    let error = Plan::from_json("{\"name\": 1}", Check::Result).unwrap_err().to_string();
    assert!(error.contains("a text is not a plan, field name: invalid type"), "{error}");
    let error = Document::from_json("{", "/some/plan.json").unwrap_err().to_string();
    assert!(error.starts_with("/some/plan.json is not a plan: EOF"), "{error}");
    let mut json = serde_json::to_value(all_reduce::direct(&Shape::one_host(2, 1))).unwrap();
    json["gpus"][1]["threadblocks"][0]["ops"][2]["channel_ids"] = serde_json::json!(["one"]);
    let error = Document::from_json(&json.to_string(), "/some/plan.json").unwrap_err().to_string();
    let place = "/some/plan.json is not a plan, field gpus[1].threadblocks[0].ops[2].channel_ids[0]: invalid type";
    assert!(error.starts_with(place), "{error}");
    let mut document = all_reduce::direct(&Shape::one_host(2, 1));
    document.gpus[1].threadblocks[0].ops[2].name = "glres".into();
    let error = Plan::new(&document, Check::Ends).unwrap_err().to_string();
    assert!(
        error.starts_with("plan all-reduce-direct-2x1, rank 1, block 0, operation 2: glres: it needs switch"),
        "{error}"
    );
}

#[test]
fn plans_that_no_call_could_use_are_not_added() {
    let refused = |document: Document| {
        let plan = Plan::new(&document, Check::Ends).unwrap();
        Selection::check_plan(&plan).unwrap_err().to_string()
    };
    let direct = all_reduce::direct(&Shape::one_host(2, 1));
    let error = refused(Document { collective: "sendrecv".into(), ..direct.clone() });
    assert!(error.contains("no call performs its collective, \"sendrecv\""), "{error}");
    let error = refused(Document { name: "direct".into(), ..direct.clone() });
    assert!(error.contains("plan direct: a built-in algorithm has that name"), "{error}");
    Selection::check_plan(&plan(&direct)).unwrap();
}

#[test]
fn channels_of_packets_exist_and_lead_to_their_destinations() {
    let changed = |change: &dyn Fn(&mut Op)| {
        let text = include_str!("../../tests/plans/packets.json");
        let mut document = Document::from_json(text, "packets.json").unwrap();
        let mut changed = 0;
        for op in document.gpus.iter_mut().flat_map(|gpu| &mut gpu.threadblocks).flat_map(|block| &mut block.ops) {
            if op.name == "rppkt" && !op.channel_ids.is_empty() {
                change(op);
                changed += 1;
            }
        }
        assert!(changed > 0);
        Plan::new(&document, Check::Result)
    };
    changed(&|_| {}).unwrap();
    for id in [7, 1000, 1 << 63] {
        let error = changed(&|op| op.channel_ids = vec![id]).unwrap_err().to_string();
        assert!(error.contains(&format!("rppkt: channel {id} of the block's")), "{error}");
    }
    // The channels of an operation are of memory or of ports; messages have the file's words.
    let error = changed(&|op| op.channel_type = Some(ChannelType::Switch)).unwrap_err().to_string();
    assert!(error.contains("rppkt: its channel_type is switch"), "{error}");
}
