//! Broker: one method per operation: route, propose, translate.
