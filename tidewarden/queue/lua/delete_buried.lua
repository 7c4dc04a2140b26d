-- delete_buried: removes buried tasks: those of a reason, or those that are named.
-- DURABILITY queue
-- GROWS   no
-- VERBS   purge
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
--         4 ""
--         5 prefix of the reason ("": any)
--         6 rank to go on from
--         7 only those buried by then (unix ms; 0: by now, of ids whenever)
--         8 less so many ms
--         9 1: the prefix is the whole reason
--         10… ids, and no others, whatever their reasons are
-- RETURNS {removed, rank to go on from, of ids how many were looked at | -1: there are no more}
open()
local most, prefix, from, till =
  int(3, 'tasks', 1, 1000), ARGV[5], int(6, 'rank', 0, NEVER), int(7, 'till', 0, NEVER)
local age = int(8, 'age', 0, NEVER)
if #ARGV > 1009 then refuse('BADARG a removal names at most 1000 tasks') end
local ids, places, seen, more, room = {}, {}, 0, false, 16777216
for i = 10, #ARGV do
  local buried = redis.call('ZSCORE', key('buried'), ARGV[i])
  if buried and (till == 0 or tonumber(buried) <= till) then
    ids[#ids + 1], places[#places + 1] = ARGV[i], i - 9
  end
end
if till == 0 then till = now - age end
if #ARGV < 10 then
  ids, seen, more = buried_page(from, most, prefix, till, ARGV[9] == '1')
end
-- The records of a queue with lanes are read, so of long ones there are few at a time.
local last = #ids
for i = 1, S.lanes == 1 and #ids or 0 do
  room = room - #(record_get(ids[i]) or '')
  if room <= 0 then
    last = i
    break
  end
end
local behind, gone, all = ids[last + 1], 0, ARGV
if last > 0 then
  ARGV, joined = { all[1], CALLER, 'buried', text(last), unpack(ids, 1, last) }, true
  gone = purge()
  ARGV, joined = all, false
end
if behind then
  return finish({ gone, places[last] or redis.call('ZRANK', key('buried'), behind) })
end
return finish({ gone, more and from + seen - gone or -1 })
