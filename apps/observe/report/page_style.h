// What a page looks like and what it does when it is touched.
#pragma once

namespace meshwright::runs {

extern const char* const kPageStyle;   // CSS
extern const char* const kPageScript;  // without it everything is there but the numbers under the
                                       // pointer

}  // namespace meshwright::runs
