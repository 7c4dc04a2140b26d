-- find: reads when a schedule of the shard ticks next.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name
-- RETURNS {now_ms, next tick ms | -1: there is none of this name}
open()
return finish({ now, tick_of(ARGV[3]) or -1 })
