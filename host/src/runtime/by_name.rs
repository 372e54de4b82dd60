//! Types of the kernels' crate in serialised options: by the names that messages have.

use maxsim_kernels::abi::element::ElementType;
use maxsim_kernels::abi::residual::BitOrder;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// A type with a name for each value.
pub(crate) trait Named: Copy + 'static {
    const ALL: &'static [Self];

    fn name(self) -> &'static str;

    /// The value of a name.
    fn of<E: Error>(name: &str) -> Result<Self, E> {
        let found = Self::ALL.iter().copied().find(|value| value.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|value| value.name()).collect();
            E::custom(format!("unknown name '{name}', expected one of {}", names.join(", ")))
        })
    }
}

impl Named for ElementType {
    const ALL: &'static [ElementType] = &ElementType::ALL;

    fn name(self) -> &'static str {
        ElementType::name(self)
    }
}

impl Named for BitOrder {
    const ALL: &'static [BitOrder] = &BitOrder::ALL;

    fn name(self) -> &'static str {
        BitOrder::name(self)
    }
}

pub(crate) fn serialize<N: Named, S: Serializer>(value: &N, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.name())
}

pub(crate) fn deserialize<'de, N: Named, D: Deserializer<'de>>(from: D) -> Result<N, D::Error> {
    N::of(&String::deserialize(from)?)
}

/// Serialises a list of values by their names.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, Named, Serializer};

    pub(crate) fn serialize<N: Named, S: Serializer>(
        values: &[N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|value| value.name()))
    }

    pub(crate) fn deserialize<'de, N: Named, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<N>, D::Error> {
        Vec::<String>::deserialize(from)?.iter().map(|name| N::of(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use crate::device::warm_up::WarmUp;
    use crate::ops::search::SearchOptions;
    use crate::problem::options::ScoreOptions;
    use crate::residual::{BitOrder, EncodeOptions, TrainOptions};
    use crate::tokens::element::ElementType;

    #[test]
    fn options_are_what_they_were_when_read_again() {
        let train = TrainOptions::default()
            .centroid_element(ElementType::Bf16)
            .encode(EncodeOptions::default().order(BitOrder::LittleEndian));
        let written = to_value(train).unwrap();
        assert_eq!(written["centroid_element"], "bf16");
        assert_eq!(written["encode"]["order"], "little-endian");
        assert_eq!(from_value::<TrainOptions>(written).unwrap(), train);
        let warm_up = WarmUp::default().elements(&[ElementType::F16, ElementType::F32]);
        assert_eq!(from_value::<WarmUp>(to_value(&warm_up).unwrap()).unwrap(), warm_up);
    }

    #[test]
    fn what_is_left_out_is_the_default_and_what_is_unknown_an_error() {
        let options: ScoreOptions = from_value(json!({ "normalize": true })).unwrap();
        assert_eq!(options, ScoreOptions::default().normalize(true));
        let options: SearchOptions = from_value(json!({ "exact": true })).unwrap();
        assert_eq!(options, SearchOptions::default().exact(true));
        assert!(from_value::<ScoreOptions>(json!({ "normalise": true })).is_err());
        let error = from_value::<TrainOptions>(json!({ "centroid_element": "f64" })).unwrap_err();
        assert!(error.to_string().contains("f16, bf16, f32"), "{error}");
    }
}
