//! The encoding of tile instructions: VEX with three bytes of prefix, and the operand in memory with a byte of scale,
//! index and base. (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapters 2 and 3.)

/// A tile instruction, with addresses for operands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// LDTILECFG
    Configure { from: usize },
    /// TILERELEASE
    Release,
    /// TILEZERO
    Zero { tile: usize },
    /// TILELOADD, and TILELOADDT1, which differs in its hint to the cache
    Load { tile: usize, from: Rows },
    /// TILESTORED
    Store { tile: usize, to: Rows },
    /// TDPBF16PS: sums ← sums + a b
    Multiply { sums: usize, a: usize, b: usize },
}

/// Rows in memory, `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) first: usize,
    pub(super) stride: usize,
}

/// The instruction that `code` begins with, and its length. General register n holds `register(n)`. `None` if it is not
/// one of [`Instruction`], or has an operand relative to RIP, which the kernel does not use.
pub(super) fn decode(
    code: impl Iterator<Item = u8>,
    register: impl Fn(u8) -> usize,
) -> Option<(Instruction, usize)> {
    let mut code = Code { bytes: code, n_read: 0 };
    let [escape, extensions, vector, opcode, operands] = code.next()?;
    // Three bytes of prefix, opcodes of 0F 38, 128 bits and W = 0.
    if escape != 0xc4 || extensions & 0x1f != 2 || vector & 0x84 != 0 {
        return None;
    }
    let mut memory = || {
        let place = Place { mode: operands >> 6, base: operands & 7, extensions };
        place.rows(&mut code, &register)
    };
    let is_register = operands >> 6 == 3;
    let [tile, other] = [operands >> 3 & 7, operands & 7].map(usize::from);
    let instruction = match (opcode, vector & 3, is_register) {
        (0x49, 0, false) if tile == 0 => Instruction::Configure { from: memory()?.first },
        (0x49, 0, true) if (tile, other) == (0, 0) => Instruction::Release,
        (0x49, 3, true) if other == 0 => Instruction::Zero { tile },
        (0x4b, 1 | 3, false) if other == 4 => Instruction::Load { tile, from: memory()? },
        (0x4b, 2, false) if other == 4 => Instruction::Store { tile, to: memory()? },
        (0x5c, 2, true) => {
            let b = usize::from(!vector >> 3 & 15);
            Instruction::Multiply { sums: tile, a: other, b: (b < 8).then_some(b)? }
        }
        _ => return None,
    };
    Some((instruction, code.n_read))
}

/// The bytes of an instruction. No byte after it is read.
struct Code<I> {
    bytes: I,
    n_read: usize,
}

impl<I: Iterator<Item = u8>> Code<I> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut next = [0; N];
        for byte in &mut next {
            *byte = self.bytes.next()?;
            self.n_read += 1;
        }
        Some(next)
    }
}

/// An operand in memory, as far as the byte of operands has it.
struct Place {
    mode: u8,
    base: u8,
    /// Inverted, the fourth bits of a tile (unused), of the index and of the base, from the highest bit on.
    extensions: u8,
}

impl Place {
    fn rows<I: Iterator<Item = u8>>(
        &self,
        code: &mut Code<I>,
        register: impl Fn(u8) -> usize,
    ) -> Option<Rows> {
        let [high_index, high_base] = [6, 5].map(|bit| (!self.extensions >> bit & 1) << 3);
        let (mut base, mut stride) = (self.base, 0);
        let is_indexed = base == 4;
        if is_indexed {
            let [scaled] = code.next()?;
            base = scaled & 7;
            let index = scaled >> 3 & 7 | high_index;
            if index != 4 {
                stride = register(index) << (scaled >> 6);
            }
        }
        let has_base = self.mode != 0 || base != 5;
        if !has_base && !is_indexed {
            return None;
        }
        let displacement = match self.mode {
            0 if has_base => 0,
            1 => isize::from(i8::from_le_bytes(code.next()?)),
            _ => i32::from_le_bytes(code.next()?) as isize,
        };
        let base = if has_base { register(base | high_base) } else { 0 };
        Some(Rows { first: base.wrapping_add_signed(displacement), stride })
    }
}

/// Register n (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, ..) holds 10,000 (n + 1).
fn decoded(code: &[u8]) -> Option<(Instruction, usize)> {
    decode(code.iter().copied(), |n| 10_000 * (usize::from(n) + 1))
}

#[test]
fn tile_instructions_are_decoded() {
    use Instruction::{Multiply, Release, Zero};
    let cases: [(&[u8], _); 5] = [
        (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Release),
        (&[0xc4, 0xe2, 0x7b, 0x49, 0xc0], Zero { tile: 0 }),
        (&[0xc4, 0xe2, 0x7b, 0x49, 0xf8], Zero { tile: 7 }),
        (&[0xc4, 0xe2, 0x4a, 0x5c, 0xc4], Multiply { sums: 0, a: 4, b: 6 }),
        (&[0xc4, 0xe2, 0x42, 0x5c, 0xdd], Multiply { sums: 3, a: 5, b: 7 }),
    ];
    for (code, instruction) in cases {
        assert_eq!(decoded(code), Some((instruction, 5)));
    }
}

#[test]
fn addresses_of_configurations_are_decoded() {
    let cases: [(&[u8], _); 4] = [
        (&[0xc4, 0xe2, 0x78, 0x49, 0x00], 10_000),        // [rax]
        (&[0xc4, 0xc2, 0x78, 0x49, 0x04, 0x24], 130_000), // [r12]
        (&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0x00], 140_000), // [r13]
        (&[0xc4, 0xe2, 0x78, 0x49, 0x44, 0x24, 0x40], 50_000 + 64), // [rsp + 64]
    ];
    for (code, from) in cases {
        assert_eq!(decoded(code), Some((Instruction::Configure { from }, code.len())));
    }
}

#[test]
fn rows_in_memory_are_decoded() {
    let rows = |first, stride| Rows { first, stride };
    let load = |tile, first, stride| Instruction::Load { tile, from: rows(first, stride) };
    let cases: [(&[u8], _); 7] = [
        // tileloadd tmm4, [rax + rcx]
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x08], load(4, 10_000, 20_000)),
        // tileloadd tmm6, [r9 + r10 * 8 + 64]
        (&[0xc4, 0x82, 0x7b, 0x4b, 0x74, 0xd1, 0x40], load(6, 100_064, 880_000)),
        // tileloadd tmm7, [rbp + r12 - 1]
        (&[0xc4, 0xa2, 0x7b, 0x4b, 0x7c, 0x25, 0xff], load(7, 59_999, 130_000)),
        // tileloadd tmm1, [rax + rbx * 2 - 2112]
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x8c, 0x58, 0xc0, 0xf7, 0xff, 0xff], load(1, 7_888, 80_000)),
        // tileloadd tmm1, [rcx * 4 + 256]
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x8d, 0x00, 0x01, 0x00, 0x00], load(1, 256, 80_000)),
        // tileloadd tmm2, [rdx]
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x14, 0x22], load(2, 30_000, 0)),
        // tileloaddt1 tmm3, [r13 + rdi]
        (&[0xc4, 0xc2, 0x79, 0x4b, 0x5c, 0x3d, 0x00], load(3, 140_000, 80_000)),
    ];
    for (code, instruction) in cases {
        assert_eq!(decoded(code), Some((instruction, code.len())));
    }
    // tilestored [rsp + r15 + 2112], tmm5
    let code = [0xc4, 0xa2, 0x7a, 0x4b, 0xac, 0x3c, 0x40, 0x08, 0x00, 0x00];
    let store = Instruction::Store { tile: 5, to: rows(52_112, 160_000) };
    assert_eq!(decoded(&code), Some((store, code.len())));
}

#[test]
fn other_instructions_are_left_to_others() {
    let cases: [&[u8]; 6] = [
        &[0x0f, 0x0b],                                           // ud2
        &[0x62, 0xf1, 0x74, 0x48, 0x58, 0xc2],                   // vaddps zmm0, zmm1, zmm2
        &[0xc4, 0xe2, 0x79, 0x49, 0x00],                         // sttilecfg [rax]
        &[0xc4, 0xe2, 0x43, 0x5e, 0xdd],                         // tdpbssd tmm3, tmm5, tmm7
        &[0xc4, 0xe2, 0x78, 0x49, 0x05, 0x40, 0x00, 0x00, 0x00], // ldtilecfg [rip + 64]
        &[0xc4, 0xe2, 0x7b, 0x4b, 0x24],                         // the beginning of tileloadd
    ];
    for code in cases {
        assert_eq!(decoded(code), None);
    }
}
