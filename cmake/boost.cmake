# HEADRACE_BOOST: Boost.Beast and Boost.Asio, for `headrace serve` and `headrace bench serve`. Headers alone: nothing of
# them is shipped.
set(HEADRACE_BOOST AUTO CACHE STRING "Boost in the program: AUTO where it is found, ON or OFF")
set_property(CACHE HEADRACE_BOOST PROPERTY STRINGS AUTO ON OFF)
set(headrace_has_boost FALSE)
if(NOT HEADRACE_BOOST STREQUAL "OFF")
  find_path(HEADRACE_BOOST_INCLUDE_DIR boost/beast/http.hpp)
  mark_as_advanced(HEADRACE_BOOST_INCLUDE_DIR)
  if(HEADRACE_BOOST_INCLUDE_DIR)
    set(headrace_has_boost TRUE)
  elseif(HEADRACE_BOOST STREQUAL "AUTO")
    message(STATUS "no headrace serve, no headrace bench serve: no Boost.Beast (Debian's libboost-dev)")
  else()
    message(FATAL_ERROR "HEADRACE_BOOST is ${HEADRACE_BOOST} and there is no Boost.Beast: install Debian's "
      "libboost-dev, or pass -DHEADRACE_BOOST=OFF")
  endif()
endif()
