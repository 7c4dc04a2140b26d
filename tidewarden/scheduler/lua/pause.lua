-- pause: pauses a schedule, or resumes it with the tick it stood at: what it missed is made up for
-- as its spec says.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 name  4 pause 0|1
-- RETURNS {now_ms, its next tick ms (of one that stands still: the one it goes on with) | -1: there
--         is none of this name}
open()
local name, pause = ARGV[3], int(4, 'pause', 0, 1) == 1
local tick = redis.call('HEXISTS', key('schedules'), name) == 1 and tick_of(name)
if not tick then return finish({ now, -1 }) end
local paused = redis.call('HEXISTS', key('paused'), name) == 1
if pause and not paused then
  -- Found out anew when it goes on; and a removal first: a full store lets the script go on.
  redis.call('HDEL', key('stuck'), name)
  redis.call('HSET', key('paused'), name, text(tick))
  redis.call('ZADD', key('ticks'), text(NEVER), name)
elseif paused and not pause then
  redis.call('HDEL', key('paused'), name)
  redis.call('ZADD', key('ticks'), text(tick), name)
end
if pause ~= paused then note_ticks() end
return finish({ now, tick })
