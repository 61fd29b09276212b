#include "apps/inference/generate_here.h"

#include "apps/inference/running/continue_folder.h"
#include "engine/launch/rendezvous/ending.h"
#include "engine/train/step/rank_agreement.h"
#include "engine/train/step/text_pieces.h"

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
