//! Types of elements: NumPy's letters for kinds, DLPack's codes, and names.

use symrail::DataType;
use symrail::collective::ElementType;

/// The type of an array's elements, as far as operations distinguish types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Type {
    /// NumPy's letter for the kind; for types without one, DLPack's code with the bit [`BEYOND`].
    pub kind: u8,
    pub bytes: usize,
}

/// Marks kinds that are DLPack's codes.
const BEYOND: u8 = 0x80;

/// Types of 8 bits that are only passed on: name, and DLPack's code.
#[rustfmt::skip]
const PASSED_ON: [(&str, u8); 6] = [
    ("float8_e3m4", 7), ("float8_e4m3", 8), ("float8_e4m3b11fnuz", 9), ("float8_e4m3fnuz", 11),
    ("float8_e5m2fnuz", 13), ("float8_e8m0fnu", 14),
];

impl From<DataType> for Type {
    fn from(ty: DataType) -> Type {
        let kind = match ty {
            DataType::Bool => b'b',
            DataType::Bfloat16 => BEYOND | 4,
            DataType::Float8E4m3 => BEYOND | 10,
            DataType::Float8E5m2 => BEYOND | 12,
            DataType::Complex64 | DataType::Complex128 => b'c',
            _ if ty.is_float() => b'f',
            _ if ty.is_unsigned() => b'u',
            _ => b'i',
        };
        Type { kind, bytes: ty.size() }
    }
}

impl Type {
    /// All types that have names, with them. Neither NumPy nor DLPack has float8_e4m3b15.
    fn named() -> impl Iterator<Item = (&'static str, Type)> {
        let known = DataType::ALL.iter().filter(|&&ty| ty != DataType::Float8E4m3b15);
        let passed_on = PASSED_ON.iter().map(|&(name, code)| (name, Type { kind: BEYOND | code, bytes: 1 }));
        known.map(|&ty| (ty.name(), ty.into())).chain(passed_on)
    }

    /// The type with this name, NumPy's or ml_dtypes'.
    pub fn of_name(name: &str) -> Option<Type> {
        Type::named().find(|&(known, _)| known == name).map(|(_, ty)| ty)
    }

    /// The type as users write it.
    pub fn name(self) -> String {
        let found = Type::named().find(|&(_, ty)| ty == self);
        found.map_or_else(|| format!("{} of {} bytes", char::from(self.kind), self.bytes), |(name, _)| name.into())
    }

    /// The type of elements, if operations other than copies know it.
    pub fn data_type(self) -> Option<DataType> {
        DataType::ALL.iter().copied().find(|&ty| Type::from(ty) == self)
    }

    /// The type as collectives compare it: bytes, if they know no such type.
    pub fn element(self) -> ElementType {
        self.data_type().map_or(ElementType::Bytes, ElementType::Of)
    }

    /// DLPack's code and number of bits; `None` for types that DLPack lacks.
    pub fn dlpack(self) -> Option<(u8, u8)> {
        let code = match self.kind {
            b'i' => 0,
            b'u' => 1,
            b'f' => 2,
            b'c' => 5,
            b'b' => 6,
            kind if kind & BEYOND != 0 => kind & !BEYOND,
            _ => return None,
        };
        Some((code, u8::try_from(self.bytes * 8).ok()?))
    }

    /// The type for DLPack's code and bits.
    pub fn of_dlpack(code: u8, bits: u8) -> Option<Type> {
        Type::named().map(|(_, ty)| ty).find(|ty| ty.dlpack() == Some((code, bits)))
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
