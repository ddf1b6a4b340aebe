//! From a seed to a program. The same seed gives the same program on every machine.

use super::*;

/// `xorshift64*` (Marsaglia 2003, Vigna 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Every driver call that a pool makes, but those after whose failure the driver keeps something for good.
const CALLS: [&str; 24] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamWaitEvent",
    "cuMemFree",
    "cuMemFree",
    "cuMemAlloc",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuStreamIsCapturing",
    "cuStreamGetId",
    "cuStreamGetFlags",
    "cuStreamGetCtx",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemGetInfo",
    "cuStreamGetCaptureInfo",
];

/// Not those that say that the device or its context is gone: it is not, and what is let go of then would be lost.
const CODES: [i32; 7] = [1, 2, 400, 500, 801, 901, 999];

fn setup(r: &mut Random) -> Setup {
    let maximum = match r.below(8) {
        0 => None,
        1 => Some(5 * MIB + 256),
        2 => Some(2 * MIB),
        3 => Some(4 * MIB),
        4..=5 => Some(8 * MIB),
        _ => Some(12 * MIB),
    };
    let initial = match r.below(3) {
        0 => 0,
        1 => (2 * MIB).min(maximum.unwrap_or(u64::MAX)),
        _ => maximum.unwrap_or(4 * MIB),
    };
    Setup {
        initial,
        maximum,
        footprint: r.below(2) == 0,
        chunks: r.below(8) == 0,
        liar: r.below(6) == 0,
        threshold: if r.below(8) == 0 { 2 * MIB } else { 0 },
    }
}

fn bytes(r: &mut Random) -> u64 {
    match r.below(16) {
        0..=2 => 1 + r.below(2000),
        3 => 1 + r.below(32 << 10),
        // Just at and beside the borders of classes, of the small sizes, of pages.
        4..=5 => (256u64 << r.below(14)) - 1 + r.below(3),
        6 => 32768 + r.below(3) * 256 - 256,
        7..=9 => 1 + r.below(1 << 20),
        10..=12 => 1 + r.below(5 << 20),
        13 => (1 + r.below(6)) * 2 * MIB,
        14 => (1 + r.below(12)) * MIB,
        _ => {
            if r.below(8) == 0 {
                u64::MAX >> r.below(24)
            } else {
                1 + r.below(64 << 10)
            }
        }
    }
}

/// The program of a seed.
pub(crate) fn program(seed: u64) -> Program {
    let mut r = Random::new(seed);
    let captures = r.below(4) == 0;
    let threads = r.below(4) == 0;
    let two = r.below(4) == 0;
    let faults = r.below(2) == 0;
    // Few streams meet often; many show what a table of them does.
    let streams = if r.below(2) == 0 { vec![0, 2, 3] } else { (0..STREAMS).collect::<Vec<u8>>() };
    let settings = Settings {
        schedule: r.below(1 << 32),
        pools: [setup(&mut r), setup(&mut r)],
        bytes: r.below(32) == 0,
        captures,
        aligned: r.below(2) == 0,
        device: (r.below(6) == 0).then(|| (1 + r.below(6)) * 2 * MIB),
        plots: seed % 2 == 1,
    };
    let steps = match r.below(16) {
        0..=4 => 8 + r.below(16),
        5..=14 => 30 + r.below(50),
        _ => 300,
    };
    // A program that frees less than it allocates runs full.
    let frees = 24 + r.below(20);
    let ops = (0..steps)
        .map(|_| {
            let block = r.below(1 << 16) as u16;
            let pool = u8::from(two && r.below(3) == 0);
            match r.below(100) {
                0..=9 if faults => {
                    if r.below(3) == 0 {
                        return Lie { manner: 1 + r.below(upstream::MANNERS.into()) as u8 };
                    }
                    let after = if r.below(2) == 0 { 0 } else { r.below(6) as u8 };
                    return Fail { call: r.pick(&CALLS), code: r.pick(&CODES), after };
                }
                10..=19 if threads => {
                    return match r.below(16) {
                        0 => EndThread { thread: 1 + r.below(THREADS as u64 - 1) as u8 },
                        _ => On { thread: r.below(THREADS as u64) as u8 },
                    };
                }
                20..=39 if captures => {
                    return match r.below(10) {
                        0..=3 => Begin { stream: r.pick(&streams), mode: r.below(3) as u8 },
                        4..=5 => End,
                        6..=8 => Launch { graph: r.below(4) as u8, stream: r.pick(&streams) },
                        _ => Forget { graph: r.below(4) as u8 },
                    };
                }
                _ => {}
            }
            match r.below(76 + frees) {
                0..=1 => Idle { pool, bytes: bytes(&mut r), stream: r.pick(&streams) },
                2..=33 => {
                    let bytes = bytes(&mut r);
                    let most = if bytes > 32 << 10 || settings.aligned { 14 } else { 1 };
                    let align = if r.below(6) == 0 { 256 << r.below(most) } else { 256 };
                    let how = r.pick(&[Object, Object, Object, Raw, Try, Stored]);
                    Allocate { pool, bytes, align, stream: r.pick(&streams), how }
                }
                34..=42 => Use { block },
                43..=51 => Move { block, to: r.pick(&streams) },
                52..=54 => FreeShared { block, by: r.pick(&streams), on: r.pick(&streams) },
                55..=56 => Misfree { block, what: r.below(5) as u8 },
                57..=58 => Order { from: r.pick(&streams), to: r.pick(&streams), told: r.below(4) as u8 },
                59 => Sync { stream: r.pick(&streams), told: r.below(4) as u8 },
                60 if r.below(3) == 0 => SyncDevice,
                61..=68 => Run { steps: 1 + r.below(12) as u8 },
                69..=71 => Trim { pool, keep: if r.below(2) == 0 { 0 } else { r.below(8 * MIB) } },
                72..=74 => Renew { stream: r.pick(&streams) },
                75 if r.below(4) == 0 => Reopen { pool },
                60 | 75 => Info { pool },
                _ => Free { block, how: r.pick(&[Object, Object, Raw, Stored, Stored, Try, Unnamed]) },
            }
        })
        .collect();
    Program { settings, ops }
}
