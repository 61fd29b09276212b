#pragma once
#include "meshwright/testing.h"
using meshwright::run_ranks;
