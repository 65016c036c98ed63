//! Options of the C API: names with values of five types.

use crate::{config::OptionValue, sys};

/// Options in the form of the C API; the pointers are into `from`.
pub fn named_values(from: &[(String, OptionValue)]) -> Vec<sys::PJRT_NamedValue> {
    from.iter()
        .map(|(name, option)| {
            let mut value = sys::PJRT_NamedValue {
                struct_size: size_of::<sys::PJRT_NamedValue>(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                value_size: 1,
                ..Default::default()
            };
            let inner = &mut value.__bindgen_anon_1;
            value.type_ = match option {
                OptionValue::String(string) => {
                    inner.string_value = string.as_ptr().cast();
                    value.value_size = string.len();
                    sys::PJRT_NamedValue_kString
                }
                OptionValue::Int64(number) => {
                    inner.int64_value = *number;
                    sys::PJRT_NamedValue_kInt64
                }
                OptionValue::Int64List(numbers) => {
                    inner.int64_array_value = numbers.as_ptr();
                    value.value_size = numbers.len();
                    sys::PJRT_NamedValue_kInt64List
                }
                OptionValue::Float(number) => {
                    inner.float_value = *number;
                    sys::PJRT_NamedValue_kFloat
                }
                OptionValue::Bool(flag) => {
                    inner.bool_value = *flag;
                    sys::PJRT_NamedValue_kBool
                }
            };
            value
        })
        .collect()
}
