//! The text of a module: what it declares and the statements of its kernels, before anybody knows what they mean.
//!
//! ```text
//!   lex        text to tokens
//!   module     .global, .shared, .entry and their like
//!   statement  @%p1 add.rn.f32 %r1, %r2, 0f3F800000;    guard, opcode, operands
//!   number     literals
//! ```

pub mod lex;
pub mod module;
pub mod number;
pub mod statement;
