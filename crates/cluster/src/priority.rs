//! The priority of a model.

use crate::small_number::small_number;

small_number! {
    /// The priority of a model, from 0 to 9: where devices do not suffice for all models, those of a higher priority are served first.
    pub struct Priority;
    /// The error for a number that is no priority.
    pub struct PriorityError;
    "a priority" from 0 to 9
}

impl Default for Priority {
    /// Returns the priority of a model for which none is given: 5.
    fn default() -> Self {
        Self(5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_0_to_9_and_5_by_default() {
        assert_eq!(Priority::default().to_string(), "5");
        for number in 0..=9 {
            let priority = Priority::new(number).unwrap();
            assert_eq!(priority.to_string().parse(), Ok(priority));
            assert_eq!(
                serde_json::to_string(&priority).unwrap(),
                number.to_string()
            );
        }
        assert!(serde_json::from_str::<Priority>("10").is_err());
        assert!(serde_json::from_str::<Priority>("-1").is_err());
        let error = "10".parse::<Priority>().unwrap_err().to_string();
        assert_eq!(error, "expected a priority from 0 to 9, got 10");
        let error = "high".parse::<Priority>().unwrap_err().to_string();
        assert_eq!(error, "expected a priority from 0 to 9, got \"high\"");
    }
}
