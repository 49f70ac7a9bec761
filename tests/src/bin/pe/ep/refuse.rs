//! Invalid arguments, and calls that differ.

use symrail::Error::ParametersDiffer;
use symrail::Runtime;
use symrail_ep::high_throughput::{Parts, Tokens};
use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;
use symrail_ep::{DataType, Error, HighThroughput, Layout, LowLatency, TopK, WaitLimit};

use super::case::rows;

/// Calls that are refused before anything is sent. The buffers still work afterwards.
pub fn refuse(rt: &Runtime) -> symrail_ep::Result<()> {
    let (me, ranks) = (rt.my_pe(), rt.n_pes() as usize);
    let different = (1 << 20) + 4096 * me as usize;
    let differs = HighThroughput::new(rt, different, WaitLimit::of(rt)).err();
    assert!(matches!(differs, Some(Error::Runtime(ParametersDiffer { pe, .. })) if pe == me), "{differs:?}");
    let small = HighThroughput::new(rt, 100, WaitLimit::of(rt)).err();
    assert!(matches!(small, Some(Error::BufferTooSmall { given: 100, .. })), "{small:?}");
    let shape = Shape { most_tokens: 4, token: 64, scales: 0, experts: 2 * ranks, k: 2 };
    let differs = LowLatency::new(rt, Shape { k: 2 + me as usize, ..shape }, WaitLimit::of(rt)).err();
    assert!(
        matches!(differs, Some(Error::Runtime(ParametersDiffer { what: "top-k slots of a token", .. }))),
        "{differs:?}"
    );
    assert!(matches!(
        LowLatency::new(rt, Shape { experts: 2 * ranks + 1, ..shape }, WaitLimit::of(rt)),
        Err(Error::Argument { .. })
    ));

    let mut buffers = HighThroughput::new(rt, sizes::high_throughput(ranks, 1, 256), WaitLimit::of(rt))?;
    let (data, indices, weights) = (vec![7; 128], [0, 1, -1, 2 * ranks as i64 - 1], [1.0; 4]);
    let topk = TopK::new(&indices, 2)?;
    let layout = Layout::of(&topk, 2 * ranks, ranks)?;
    let good = Tokens { rows: rows(&data, 64), scales: None, topk: Some((topk, &weights)) };
    // Errors of PE 0 that the others do not notice.
    if me == 0 {
        let far = [0, 1, -1, 2 * ranks as i64];
        let wrong = buffers.dispatch(&Tokens { topk: Some((TopK::new(&far, 2)?, &weights)), ..good }, &layout);
        assert!(matches!(wrong, Err(Error::NoSuchExpert { token: 1, slot: 1, .. })));
        for wrong in [
            Tokens { rows: rows(&data, 128), ..good },
            Tokens { topk: Some((topk, &weights[1..])), ..good },
            Tokens { scales: Some(rows(&data, 128)), ..good },
        ] {
            assert!(matches!(buffers.dispatch(&wrong, &layout), Err(Error::Argument { .. })));
        }
        let large = vec![1; 2 * 512];
        let wrong = buffers.dispatch(&Tokens { rows: rows(&large, 512), ..good }, &layout);
        assert!(matches!(wrong, Err(Error::BufferTooSmall { needed, .. }) if needed > buffers.bytes()), "{wrong:?}");
    }
    let (_, handle) = buffers.dispatch(&good, &layout)?;
    // One rank has rows of another size: all ranks get an error.
    let bytes = if me == 0 { 32 } else { 64 };
    let differs = buffers.dispatch(&Tokens { rows: rows(&data[..2 * bytes], bytes), ..good }, &layout);
    assert!(matches!(&differs, Err(Error::Runtime(ParametersDiffer { what: "bytes of a row", .. }))), "{differs:?}");
    // One rank has rows of another type, of as many bytes.
    let element = if me == 0 { DataType::Float16 } else { DataType::Bfloat16 };
    let differs = buffers.dispatch(&Tokens { rows: rows(&data, 64).of(element), ..good }, &layout);
    assert!(matches!(&differs, Err(Error::TypesDiffer { pe, .. }) if *pe == me), "{differs:?}");
    let text = differs.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("float16") && text.contains("bfloat16"), "{text}");
    // The ranks make different calls.
    let made = vec![1; 64 * handle.rows()];
    let parts = Parts { rows: rows(&made, 64), element: DataType::Bfloat16, weights: None, biases: [None, None] };
    let differs = if me == 0 { buffers.combine(&parts, &handle).err() } else { buffers.dispatch(&good, &layout).err() };
    assert!(matches!(differs, Some(Error::Runtime(ParametersDiffer { .. }))), "{differs:?}");
    if me == 0 {
        let wrong = Parts { rows: rows(&made[64..], 64), ..parts };
        assert!(matches!(buffers.combine(&wrong, &handle), Err(Error::Argument { .. })));
        let wrong = Parts { element: DataType::Float16, ..parts };
        let refused = buffers.combine(&wrong, &handle).unwrap_err().to_string();
        assert!(refused.contains("float16") && refused.contains("float32 or bfloat16"), "{refused}");
        let wrong = Parts { biases: [Some(rows(&data[..64], 64)), None], ..parts };
        assert!(matches!(buffers.combine(&wrong, &handle), Err(Error::Argument { .. })));
    }
    // The handles of different dispatches, of which only one rank's tokens go elsewhere: some ranks expect as many rows by
    // one as others send by the other.
    let own = if me == 1 { TopK::new(&[-1; 4], 2)? } else { topk };
    let other_layout = Layout::of(&own, 2 * ranks, ranks)?;
    let (_, other) = buffers.dispatch(&Tokens { topk: Some((own, &weights)), ..good }, &other_layout)?;
    let mine = if me == 0 { &handle } else { &other };
    let of_mine = vec![1; 64 * mine.rows()];
    let differs = [
        buffers.dispatch_again(&Tokens { topk: None, ..good }, mine).err(),
        buffers.combine(&Parts { rows: rows(&of_mine, 64), ..parts }, mine).err(),
    ];
    for differs in differs {
        let what = "the routes of a handle (a checksum; 0 without one)";
        assert!(
            matches!(&differs, Some(Error::Runtime(ParametersDiffer { what: found, .. })) if *found == what),
            "{differs:?}"
        );
    }
    let element = if me == 0 { DataType::Float32 } else { DataType::Bfloat16 };
    let differs = buffers.combine(&Parts { element, ..parts }, &handle);
    assert!(matches!(&differs, Err(Error::TypesDiffer { .. })), "{differs:?}");
    buffers.combine(&parts, &handle)?;

    let mut low = LowLatency::new(rt, shape, WaitLimit::of(rt))?;
    if me == 0 {
        let many = vec![0; 5 * 64];
        let wrong = low.send_dispatch(rows(&many, 64), None, TopK::new(&[0; 10], 2)?);
        assert!(matches!(wrong, Err(Error::TooManyTokens { tokens: 5, most: 4 })));
        let wrong = low.send_dispatch(rows(&many[..64], 64), None, TopK::new(&[0, -2], 2)?);
        assert!(matches!(wrong, Err(Error::NoSuchExpert { token: 0, slot: 1, expert: -2, .. })));
        for (bytes, k) in [(128, 2), (64, 4)] {
            let wrong = low.send_dispatch(rows(&many[..2 * bytes], bytes), None, TopK::new(&vec![0; 2 * k], k)?);
            assert!(matches!(wrong, Err(Error::Argument { .. })));
        }
    }
    let sent = low.send_dispatch(rows(&data, 64), None, topk)?;
    let found = low.receive_dispatch(&sent)?;
    let bytes = if me == 0 { 32 } else { 64 };
    let sent = low.send_dispatch(rows(&data[..2 * bytes], bytes), None, topk)?;
    let differs = low.receive_dispatch(&sent);
    assert!(matches!(&differs, Err(Error::Runtime(ParametersDiffer { what: "bytes of a row", .. }))), "{differs:?}");
    let differs = low.send_dispatch(rows(&data, 64).of(element), None, topk)?;
    let differs = low.receive_dispatch(&differs);
    assert!(matches!(&differs, Err(Error::TypesDiffer { .. })), "{differs:?}");
    let all = vec![0; 2 * ranks * 4 * 64];
    let differs = low.send_combine(rows(&all, 64), element, &found.ranges)?;
    let differs = low.receive_combine(&differs, topk, &weights);
    assert!(matches!(&differs, Err(Error::TypesDiffer { .. })), "{differs:?}");
    if me == 0 {
        let of_halves = low.send_combine(rows(&all, 64), DataType::Float16, &found.ranges);
        assert!(matches!(of_halves, Err(Error::Argument { what: "the type of elements", .. })));
        let mut ranges = found.ranges.clone();
        ranges[0].1 = 100;
        for (data, ranges) in [(&all[64..], &found.ranges), (&all[..], &ranges)] {
            assert!(matches!(low.send_combine(rows(data, 64), DataType::Float32, ranges), Err(Error::Argument { .. })));
        }
    }
    // A rank that is masked while a call is in flight: its block of that call is not one of a later call.
    let sent = low.send_dispatch(rows(&data, 64), None, topk)?;
    if me != 1 {
        low.mask(1, true)?;
    }
    low.receive_dispatch(&sent)?;
    if me != 1 {
        let back = low.mask(1, false);
        assert!(matches!(back, Err(Error::Order { .. })), "{back:?}");
    }
    low.connect(&[1])?;
    let data = vec![9; 128];
    let sent = low.send_dispatch(rows(&data, 64), None, topk)?;
    let found = low.receive_dispatch(&sent)?;
    let count = found.counts[0] as usize;
    assert!(me != 0 || count == ranks, "PE {me}: {:?}", found.counts);
    assert!(found.rows[..64 * count].iter().all(|&byte| byte == 9), "PE {me}: a row of an earlier call");
    low.free()?;
    buffers.free()
}
