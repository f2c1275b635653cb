//! Numbers that may be absent, as parameters of statements.

use sqlx::{Any, any::AnyArguments, query::Query};

/// A statement that takes numbers which may be absent.
pub(super) trait BindReal: Sized {
    /// Binds a number, or NULL.
    fn bind_real(self, number: Option<f64>) -> Self;
}

impl BindReal for Query<'_, Any, AnyArguments> {
    fn bind_real(self, number: Option<f64>) -> Self {
        match number {
            Some(number) => self.bind(number),
            // sqlx 0.9 has the types of absent numbers the wrong way round. With the other one PostgreSQL keeps a statement for numbers of four bytes, and
            // refuses those of eight from then on.
            None => self.bind(None::<f32>),
        }
    }
}
