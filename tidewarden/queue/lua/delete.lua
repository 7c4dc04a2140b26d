-- delete: removes a task in any state; a leased one only by its lease number or by force.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 id  4 lease (0: none)  5 force 0|1
-- RETURNS 1, 0 (no such task) or 'NOTHELD'
open()
local id, lease, force = ARGV[3], int(4, 'lease', 0, 9007199254740991), ARGV[5] == '1'
local t, r, unreadable = both_get(id)
if not t and not unreadable then return finish(lease ~= 0 and 'NOTHELD' or 0) end
local where = unreadable and lease_end_of(id) and 'leased' or t and locate(id, t, r)
if
  not force and (where == 'leased' and (r and r.lease) ~= lease or where ~= 'leased' and lease ~= 0)
then
  return finish('NOTHELD')
end
if unreadable then
  uproot({ id })
else
  index_remove(id, t, r, where)
end
records_drop({ id })
if r or unreadable then tries_drop(id) end
count('deleted')
freed = true
removed(id, unreadable or not t.own)
return finish(1)
