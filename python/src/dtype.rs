//! Types of elements: NumPy's letters for kinds, DLPack's codes, and names.

use symrail::collective::ElementType;
use symrail_core::VariantArray;

/// The type of an array's elements, as far as operations distinguish types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Type {
    /// NumPy's letter for the kind; for types without one, DLPack's code with the bit [`BEYOND`].
    pub kind: u8,
    pub bytes: usize,
}

/// Marks kinds that are DLPack's codes.
const BEYOND: u8 = 0x80;

/// Types that NumPy knows only with the package ml_dtypes: name, DLPack's code, bytes.
const BEYOND_NUMPY: [(&str, u8, usize); 9] = [
    ("bfloat16", 4, 2),
    ("float8_e3m4", 7, 1),
    ("float8_e4m3", 8, 1),
    ("float8_e4m3b11fnuz", 9, 1),
    ("float8_e4m3fn", 10, 1),
    ("float8_e4m3fnuz", 11, 1),
    ("float8_e5m2", 12, 1),
    ("float8_e5m2fnuz", 13, 1),
    ("float8_e8m0fnu", 14, 1),
];

/// Kinds of numbers that NumPy and DLPack know: letter, name, code, possible bytes.
const KINDS: [(u8, &str, u8, &[usize]); 4] = [
    (b'i', "int", 0, &[1, 2, 4, 8]),
    (b'u', "uint", 1, &[1, 2, 4, 8]),
    (b'f', "float", 2, &[2, 4, 8]),
    (b'c', "complex", 5, &[8, 16]),
];

impl Type {
    /// The type with this name, NumPy's or one of the additional types.
    pub fn of_name(name: &str) -> Option<Type> {
        if let Some(&(_, code, bytes)) = BEYOND_NUMPY.iter().find(|(known, ..)| *known == name) {
            return Some(Type { kind: BEYOND | code, bytes });
        }
        let all = KINDS.iter().flat_map(|&(kind, _, _, sizes)| sizes.iter().map(move |&bytes| Type { kind, bytes }));
        all.chain([Type { kind: b'b', bytes: 1 }]).find(|ty| ty.name() == name)
    }

    /// The type as users write it.
    pub fn name(self) -> String {
        let Type { kind, bytes } = self;
        if kind == b'b' {
            return "bool".into();
        }
        if let Some((_, name, ..)) = KINDS.iter().find(|(letter, ..)| *letter == kind) {
            return format!("{name}{}", bytes * 8);
        }
        let beyond = BEYOND_NUMPY.iter().find(|(_, code, size)| BEYOND | code == kind && *size == bytes);
        beyond.map_or_else(|| format!("{} of {bytes} bytes", char::from(kind)), |(name, ..)| (*name).into())
    }

    /// The type as collectives compare it: bytes, if they know no type of this name.
    pub fn element(self) -> ElementType {
        let name = self.name();
        ElementType::VARIANTS.iter().copied().find(|ty| ty.name() == name).unwrap_or(ElementType::Bytes)
    }

    /// DLPack's code and number of bits; `None` for types that DLPack lacks.
    pub fn dlpack(self) -> Option<(u8, u8)> {
        let code = match self.kind {
            b'b' => 6,
            kind if kind & BEYOND != 0 => kind & !BEYOND,
            kind => KINDS.iter().find(|(letter, ..)| *letter == kind)?.2,
        };
        Some((code, u8::try_from(self.bytes * 8).ok()?))
    }

    /// The type for DLPack's code and bits.
    pub fn of_dlpack(code: u8, bits: u8) -> Option<Type> {
        let bytes = usize::from(bits) / 8;
        let letters = KINDS.iter().map(|&(kind, ..)| kind).chain([b'b']);
        let beyond = BEYOND_NUMPY.iter().map(|&(_, code, _)| BEYOND | code);
        letters.chain(beyond).map(|kind| Type { kind, bytes }).find(|ty| ty.dlpack() == Some((code, bits)))
    }

    /// The type's text in `__cuda_array_interface__` and `__array_interface__`; `None` for the additional types.
    pub fn typestr(self) -> Option<String> {
        let order = if self.bytes == 1 { '|' } else { '<' };
        (self.kind & BEYOND == 0).then(|| format!("{order}{}{}", char::from(self.kind), self.bytes))
    }

    /// The type for such a text.
    pub fn of_typestr(text: &str) -> Option<Type> {
        let [b'<' | b'|' | b'=', kind, bytes @ ..] = text.as_bytes() else { return None };
        let ty = Type { kind: *kind, bytes: std::str::from_utf8(bytes).ok()?.parse().ok()? };
        ty.dlpack().map(|_| ty)
    }
}
