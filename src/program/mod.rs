//! Programs as they travel: the portable StableHLO artifact, compile options and optimised HLO, read and rewritten
//! as bytes. Safe code that knows no PJRT and no device.
#![deny(unsafe_code)]
