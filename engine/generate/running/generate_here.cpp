#include "engine/generate/generate_here.h"

#include "engine/generate/running/continued.h"
#include "engine/generate/running/text_pieces.h"
#include "engine/rendezvous/ending.h"
#include "engine/trainer/rank_agreement.h"

namespace meshwright::generate {

void generate_here(const GenerateHere& here) {
  rendezvous::Ending ending;
  std::optional<Error> failed;
  try {
    const Source source(here.request.folder, here.request.sets);
    TextPieces pieces(source, here.tell, here.token);
    continue_folder(source, here.request, ending, pieces.listener());
    pieces.finish();
    ending.finish();
  } catch (...) {
    failed = train::error_being_handled();
  }
  if (!failed) return;
  ending.tell(*failed);
  throw *failed;
}

}  // namespace meshwright::generate
