-- lanes: brings lanes in line with changed settings of the queue: heads come up to ready, or go
-- down again.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 heads (those that may be too many) | waiting (those that may be missing)
--         4 cursor ("": from the start)
--         5 lanes at most, about
-- RETURNS cursor ("": this was the last)
open()
local part, cursor, most = ARGV[3], ARGV[4], int(5, 'lanes', 1, 1000)
redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
if part == 'heads' then
  local page = redis.call('HSCAN', key('lanes'), cursor == '' and '0' or cursor, 'COUNT', most)
  for i = 1, #page[2], 2 do
    laned().get(page[2][i])
  end
  return finish(page[1] == '0' and '' or page[1])
end
for _ = 1, most do
  -- The cursor is the name of the lane that was the last: its range ends before its length, its
  -- name and a byte above all priorities.
  local from = cursor == '' and '-' or '[' .. string.char(#cursor) .. cursor .. '\255'
  local entry = redis.call('ZRANGEBYLEX', key('waiting'), from, '+', 'LIMIT', 0, 1)[1]
  if not entry then return finish('') end
  cursor = laned().parse(entry, 13)
  laned().get(cursor)
end
return finish(cursor)
