-- ARGV: unused_ms, tombstone_ms
-- A hash written before used_ms existed counts from its last change.
local stored = read('epoch', 'deleted', 'used_ms', 'lease_until_ms', 'update_ms')
if absent(stored[1], stored[2]) then return {'NOT_FOUND'} end
local now = now_ms()
-- A damaged hash is left for the operator.
if damaged() then return {'USED'} end
local used = math.max(number(stored[3]) or 0, number(stored[4]) or 0, number(stored[5]) or 0)
if used + tonumber(ARGV[1]) > now then return {'USED'} end
bury(int(next_epoch(stored[1], now)), ARGV[2])
return {'OK'}
