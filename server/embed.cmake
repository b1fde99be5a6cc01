# Writes a .cc with the bytes of files: cmake -DOUTPUT=... -DFILES=a;b -P embed.cmake
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_svg "image/svg+xml")
set(types_js "text/javascript; charset=utf-8")
set(types_yaml "application/yaml")
set(arrays "")
set(cases "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  string(MAKE_C_IDENTIFIER ${name} identifier)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  # A file may be empty, an array not: a zero follows the bytes.
  string(APPEND arrays "constexpr unsigned char k_${identifier}[] = {${bytes}0};\n")
  string(APPEND cases
    "  if (name == \"${name}\")\n    return {\"${types_${extension}}\", "
    "{reinterpret_cast<const char*>(k_${identifier}), sizeof k_${identifier} - 1}};\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"assets.h\"\n\nnamespace headrace::server {\nnamespace {\n${arrays}}  // namespace\n\n\
Asset find_asset(std::string_view name) {\n${cases}  return {};\n}\n\n}  // namespace headrace::server\n")
