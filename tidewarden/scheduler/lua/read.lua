-- read: reads what a schedule of the shard puts.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name
-- RETURNS {task, payload}, the task empty where this version cannot read the row; {}: there is none
--         of this name
open()
local row = row_get(ARGV[3])
return finish(row and { row.task, row.payload } or {})
