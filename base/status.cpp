// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

namespace bowhead {

const char* status_name(Status status) {
  switch (status) {
#define BOWHEAD_STATUS_NAME(number, name, text) \
  case Status::name:                            \
    return #name;
    BH_STATUS_LIST(BOWHEAD_STATUS_NAME)
#undef BOWHEAD_STATUS_NAME
  }
  return "UNKNOWN";
}

const char* status_text(Status status) {
  switch (status) {
#define BOWHEAD_STATUS_TEXT(number, name, text) \
  case Status::name:                            \
    return text;
    BH_STATUS_LIST(BOWHEAD_STATUS_TEXT)
#undef BOWHEAD_STATUS_TEXT
  }
  return "unknown status";
}

}  // namespace bowhead
