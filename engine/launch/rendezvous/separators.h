// How lists travel as one text between ranks: ASCII's separators, which neither names nor paths
// hold.
#pragma once

namespace meshwright::rendezvous {

inline constexpr char kUnitSeparator = '\x1f', kRecordSeparator = '\x1e';

}  // namespace meshwright::rendezvous
