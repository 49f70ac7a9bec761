//! The steps of the programs. Each is exact, and the PE that observes its effects checks it.

use symrail_proxy::channel::{Request, Width};
use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Signal, Source};

use crate::pe::Memory;
use crate::world::{
    A, B, BLOCK, BLOCK_MAX, CROWD, CROWD_BYTES, CROWD_SIZE, LAST, NOISE, PART, SEGMENTED_BLOCK, SIGNAL,
    STAGED_BLOCK_MAX, SUM, World,
};

impl World {
    pub fn act(&mut self) {
        let n = self.pes.len() as u64;
        let (source, target) = (self.random.below(n) as usize, self.random.below(n) as usize);
        let part = (source * PART) as u64;
        if !self.pes[source].devices.is_empty() && self.random.below(4) == 0 {
            return self.device_streams(source, target, part);
        }
        match self.random.below(if self.crowds_left > 0 { 10 } else { 9 }) {
            0..=2 => self.fenced_pair(source, target, part),
            3 => self.put_signal(source, target, part),
            4 => self.add(source, target, part),
            5 => (0..1 + self.random.below(8)).for_each(|_| self.fetch(source, target, part)),
            6 => self.get(source, target, part),
            7 => self.quiet(source),
            8 => self.batch(source, target, part),
            _ => self.crowd(source, target, part),
        }
    }

    pub fn add(&mut self, source: usize, target: usize, part: u64) {
        self.streams[source][target].added += 3;
        let (offset, ty) = (part + SUM, self.word_type());
        let command = Command::Amo { offset, ty, op: AmoOp::Add, operand: 3, compare: 0, fetch: Fetch::No };
        self.submit(source, target, command, None);
    }

    /// Small operations that travel together, and then gets, which return all their results.
    pub fn batch(&mut self, source: usize, target: usize, part: u64) {
        for _ in 0..16 + self.random.below(48) {
            match self.random.below(3) {
                0 => self.add(source, target, part),
                1 => self.fetch(source, target, part),
                _ => {
                    let noise = self.keep(source, vec![7; 8]);
                    let put = Command::Put { dest: part + NOISE, source: Source::Stable(noise), len: 8 };
                    self.submit(source, target, put, None);
                }
            }
        }
        self.get(source, target, part);
    }

    /// A device pushes more than an engine takes in a round, and continues while that is under way.
    pub fn device_streams(&mut self, source: usize, target: usize, part: u64) {
        let (engine, count) = (self.random.below(self.pes[source].devices.len() as u64), self.random.below(600));
        for at in 0..count {
            let request = if at % 5 == 0 {
                Request::P { pe: target as u32, offset: part + NOISE, width: Width::W8, value: at }
            } else {
                self.streams[source][target].added += 3;
                let (ty, op) = (AmoType::U64, AmoOp::Add);
                Request::Amo { pe: target as u32, offset: part + SUM, ty, op, operand: 3, compare: 0 }
            };
            while self.pes[source].devices[engine as usize].try_push(&request).is_err() {
                self.poll_one();
            }
        }
    }

    pub fn fetch(&mut self, source: usize, target: usize, part: u64) {
        self.streams[source][target].added += 1;
        let tag = self.next_tag;
        self.next_tag += 1;
        let command = Command::Amo {
            offset: part + SUM,
            ty: self.word_type(),
            op: AmoOp::Add,
            operand: 1,
            compare: 0,
            fetch: Fetch::Returned,
        };
        self.submit(source, target, command, Some(tag << 16 | target as u64));
    }

    /// A random word type. The sums stay small, so their low half equals the whole, but a NIC treats it differently.
    pub fn word_type(&mut self) -> AmoType {
        // Staging changes words of one size.
        let types = [AmoType::U64, AmoType::I64, AmoType::U32];
        types[self.random.below(if self.staged { 2 } else { 3 }) as usize]
    }

    pub fn fenced_pair(&mut self, source: usize, target: usize, part: u64) {
        let stream = &mut self.streams[source][target];
        stream.pair += 1;
        let value = stream.pair;
        let ptr = self.keep(source, value.to_ne_bytes().to_vec());
        // Memory that the CPU cannot touch cannot be copied.
        let guarded = matches!(&self.pes[source].memory, Memory::Guarded(m) if m.reachable(ptr.addr(), 8).is_some());
        let copied = self.random.below(2) == 0 && !guarded;
        let put = |dest| Command::Put {
            dest,
            source: if copied { Source::Copied(ptr) } else { Source::Stable(ptr) },
            len: 8,
        };
        let set = |offset| Command::Amo {
            offset,
            ty: AmoType::U64,
            op: AmoOp::Set,
            operand: value,
            compare: 0,
            fetch: Fetch::No,
        };
        // Two puts to one word are not ordered either, so a fence comes before each.
        let commands = [[put(part + A), put(part + B)], [put(part + A), set(part + B)], [set(part + A), put(part + B)]];
        for command in commands[self.random.below(3) as usize] {
            self.pes[source].fence();
            // The second operation after a fence is behind it, too.
            if self.random.below(2) == 0 {
                let noise = if self.random.below(2) == 0 { put(part + NOISE) } else { set(part + NOISE) };
                self.submit(source, target, noise, None);
            }
            self.submit(source, target, command, None);
            if self.random.below(2) == 0 {
                self.poll_one();
            }
        }
    }

    pub fn put_signal(&mut self, source: usize, target: usize, part: u64) {
        if self.streams[source][target].block_busy {
            self.quiet(source);
        }
        // What came after its quiet.
        self.check_block(source, target, true);
        let most = if self.staged { STAGED_BLOCK_MAX } else { BLOCK_MAX };
        let mut len = [0, 8, 64, 4000, 4096, 10_000 & !7, most][self.random.below(7) as usize];
        if self.segmented_left > 0 && self.random.below(3) == 0 {
            self.segmented_left -= 1;
            len = SEGMENTED_BLOCK;
        }
        let stream = &mut self.streams[source][target];
        stream.signals += 1;
        (stream.block_len, stream.block_busy) = (len, true);
        let count = stream.signals;
        let fill = vec![count as u8; len as usize];
        let ptr = self.keep(source, fill);
        let set = Signal { offset: part + SIGNAL, value: count, op: AmoOp::Set };
        let add = Signal { value: 1, op: AmoOp::Add, ..set };
        // The previous block was awaited, so the signals are in order, too.
        let signal = if self.random.below(2) == 0 { set } else { add };
        if self.random.below(2) == 0 {
            let command = Command::PutSignal { dest: part + BLOCK, source: Source::Stable(ptr), len, signal };
            return self.submit(source, target, command, None);
        }
        // The same data in several puts.
        for (at, len) in self.parts(len) {
            let from = Source::Stable(ptr.wrapping_add(at as usize));
            self.submit(source, target, Command::Put { dest: part + BLOCK + at, source: from, len }, None);
        }
        self.pes[source].fence();
        let Signal { offset, value, op } = signal;
        let command = Command::Amo { offset, ty: AmoType::U64, op, operand: value, compare: 0, fetch: Fetch::No };
        self.submit(source, target, command, None);
    }

    /// The start and the length of each part of so many bytes.
    fn parts(&mut self, len: u64) -> Vec<(u64, u64)> {
        let part = len.div_ceil(1 + self.random.below(9)).next_multiple_of(8).max(8);
        (0..len).step_by(part as usize).map(|at| (at, part.min(len - at))).collect()
    }

    /// More puts at once than have room, and behind them one that may wait to be coalesced.
    pub fn crowd(&mut self, source: usize, target: usize, part: u64) {
        self.crowds_left -= 1;
        self.quiet(source);
        let stream = &mut self.streams[source][target];
        stream.crowds += 1;
        let count = stream.crowds;
        let ptr = self.keep(source, vec![count as u8; CROWD_BYTES as usize]);
        for i in 0..CROWD_SIZE {
            let put =
                Command::Put { dest: part + CROWD + i * CROWD_BYTES, source: Source::Copied(ptr), len: CROWD_BYTES };
            self.submit(source, target, put, None);
        }
        let last = self.keep(source, count.to_ne_bytes().to_vec());
        self.submit(source, target, Command::Put { dest: part + LAST, source: Source::Stable(last), len: 8 }, None);
        if self.random.below(2) == 0 {
            self.quiet(source);
        }
    }

    pub fn get(&mut self, source: usize, target: usize, part: u64) {
        self.quiet(source);
        let expected = self.streams[source][target].added;
        if self.random.below(2) == 0
            && let Some(to) = self.pes[source].guarded(&[0; 8])
        {
            self.submit(source, target, Command::Get { source: part + SUM, dest: to, len: 8 }, None);
            self.quiet(source);
            let pe = &mut self.pes[source];
            let at = to.addr() - pe.base().addr();
            assert_eq!(pe.word(at as u64), expected);
            return self.get_block(source, target, part);
        }
        let mut word = Box::new(0u64);
        let to: *mut u8 = (&raw mut *word).cast();
        self.submit(source, target, Command::Get { source: part + SUM, dest: to, len: 8 }, None);
        self.quiet(source);
        assert_eq!(*word, expected);
        self.get_block(source, target, part);
    }

    pub fn get_block(&mut self, source: usize, target: usize, part: u64) {
        let stream = &self.streams[source][target];
        let consumed = stream.consumed == stream.signals;
        let (len, signal) = (stream.block_len as usize, stream.signals as u8);
        let fill = if consumed { !signal } else { signal };
        let mut block = vec![!fill; len].into_boxed_slice();
        for (at, len) in self.parts(len as u64) {
            let dest = block.as_mut_ptr().wrapping_add(at as usize);
            self.submit(source, target, Command::Get { source: part + BLOCK + at, dest, len }, None);
        }
        self.quiet(source);
        assert!(block.iter().all(|&byte| byte == fill), "a get brought something else");
    }
}
