#include "engine/loader/private_copy.h"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace meshwright::loader {

namespace {

// Whole pages that come from the file, and what the process may do with them.
struct Pages {
  uintptr_t begin, end;
  int rights;
};

struct Search {
  const std::string file;
  std::vector<Pages> found = {};
};

int take(dl_phdr_info* library, size_t, void* given) {
  Search& search = *static_cast<Search*>(given);
  if (search.file != library->dlpi_name) return 0;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto down = [&](uintptr_t address) { return address / page * page; };
  Pages sealed{0, 0, PROT_READ};  // variables that became constants once the library was loaded
  for (int i = 0; i < library->dlpi_phnum; ++i)
    if (const ElfW(Phdr)& part = library->dlpi_phdr[i]; part.p_type == PT_GNU_RELRO)
      sealed = {down(library->dlpi_addr + part.p_vaddr),
                down(library->dlpi_addr + part.p_vaddr + part.p_memsz), PROT_READ};
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || part.p_filesz == 0) continue;
    const uintptr_t begin = library->dlpi_addr + part.p_vaddr;
    Pages pages{down(begin), down(begin + part.p_filesz + page - 1),
                PROT_READ | ((part.p_flags & PF_X) != 0 ? PROT_EXEC : 0) |
                    ((part.p_flags & PF_W) != 0 ? PROT_WRITE : 0)};
    if ((part.p_flags & PF_W) != 0 && sealed.begin == pages.begin) {
      sealed.end = std::min(sealed.end, pages.end);
      if (sealed.end > sealed.begin) search.found.push_back(sealed);
      pages.begin = std::max(pages.begin, sealed.end);
    }
    if (pages.end > pages.begin) search.found.push_back(pages);
  }
  return 1;
}

// Page by page as it is: to the address sanitizer the gaps between a library's variables are no
// memory to read, which memcpy() would be told.
__attribute__((no_sanitize("address"))) void read_pages(void* to, uintptr_t from, size_t size) {
  auto* out = static_cast<volatile uint64_t*>(to);
  const auto* in = reinterpret_cast<const volatile uint64_t*>(from);
  for (size_t i = 0; i < size / sizeof(uint64_t); ++i) out[i] = in[i];
}

// Memory of ours takes the place of the file's, in one step.
void copy(const Pages& pages) {
  const size_t size = pages.end - pages.begin;
  void* mine = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mine == MAP_FAILED) return;
  read_pages(mine, pages.begin, size);
  if (::mprotect(mine, size, pages.rights) != 0 ||
      ::mremap(mine, size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
               reinterpret_cast<void*>(pages.begin)) == MAP_FAILED)
    ::munmap(mine, size);
}

}  // namespace

void keep_private(const std::filesystem::path& file, const detail::PluginCode* plugin) {
  Search search{file.string()};
  ::dl_iterate_phdr(take, &search);
  for (const Pages& pages : search.found) {
    if ((pages.rights & PROT_EXEC) != 0)
      detail::plugin_has_code(plugin, reinterpret_cast<const void*>(pages.begin),
                              reinterpret_cast<const void*>(pages.end));
    copy(pages);
  }
  // The system's loader knows libraries by their inodes. Nothing of the file is mapped any more, so
  // one that is put in its place could get the same and be taken for it: the open file keeps it,
  // for as long as the library stays, which is the process's time.
  (void)::open(file.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace meshwright::loader
