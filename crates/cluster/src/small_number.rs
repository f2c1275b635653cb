//! Small whole numbers between two limits, each a type of its own.

/// Defines a number and its error: conversions from and to `u32`, from text, to text and by serde, all of which keep the limits.
macro_rules! small_number {
    (
        $(#[$number_doc:meta])* pub struct $number:ident;
        $(#[$error_doc:meta])* pub struct $error:ident;
        $what:literal from $least:literal to $most:literal
    ) => {
        $(#[$number_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "u32", into = "u32")]
        pub struct $number(u8);

        $(#[$error_doc])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("expected {} from {} to {}, got {given}", $what, $least, $most)]
        pub struct $error {
            given: String,
        }

        impl $number {
            /// Creates a number.
            ///
            /// # Errors
            /// If the number is outside of the limits.
            pub fn new(number: u32) -> Result<Self, $error> {
                let small = u8::try_from(number).ok();
                let small = small.filter(|small| ($least..=$most).contains(small));
                small.map(Self).ok_or_else(|| $error {
                    given: number.to_string(),
                })
            }
        }

        impl TryFrom<u32> for $number {
            type Error = $error;

            fn try_from(number: u32) -> Result<Self, $error> {
                Self::new(number)
            }
        }

        impl From<$number> for u32 {
            fn from(number: $number) -> Self {
                number.0.into()
            }
        }

        impl std::str::FromStr for $number {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                let number = text.parse::<u32>().map_err(|_| $error {
                    given: format!("{:?}", text.chars().take(64).collect::<String>()),
                })?;
                Self::new(number)
            }
        }

        impl std::fmt::Display for $number {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

pub(crate) use small_number;
