//! The machine from outside: life stories of tasks as text, and random histories.

mod history;
mod scripts;
