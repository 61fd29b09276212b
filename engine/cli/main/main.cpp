#include "engine/cli/verb.h"

int main(int argc, char** argv) { return meshwright::cli::run(argc, argv); }
